//! Every record sample that was ever sent satisfies the JSON Schema of its type.

use serde_json::{Value, json};
use weir_tests::installation::repository;
use weir_tests::json_schema::problems;

fn read(path: &std::path::Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn samples_satisfy_their_schemas() {
    let schemas = repository().join("schemas");
    let mut checked = 0;
    for entry in std::fs::read_dir(schemas.join("json")).unwrap() {
        let schema_path = entry.unwrap().path();
        let schema = read(&schema_path);
        let mut sample = read(&schemas.join("samples").join(schema_path.file_name().unwrap()));
        assert_eq!(problems(&schema, &sample), Vec::<String>::new(), "{}", schema_path.display());
        // The check can fail.
        (sample["data"], sample["sequence"]) = (json!({}), Value::Null);
        assert!(!problems(&schema, &sample).is_empty(), "{}", schema_path.display());
        checked += 1;
    }
    assert!(checked >= 3);
}
