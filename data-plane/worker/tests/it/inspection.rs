//! `weir inspect`: what an operator pins.

use crate::support::model_path;

#[test]
fn the_facts_of_the_model_file() {
    let facts = weir_worker::inspect(&model_path()).unwrap();
    assert_eq!(facts.digest, "sha256:b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53");
    assert_eq!((facts.architecture.as_str(), facts.dtype.as_str()), ("llama", "Q4_1"));
    assert_eq!((facts.context_limit, facts.parameter_count), (8192, 134_515_008));
    assert!(facts.tokenizer_digest.starts_with("sha256:"));
    assert_eq!(facts.weights_uri, format!("file://{}", model_path().display()));
}

#[test]
fn a_file_that_is_no_model_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "GGUF is what this is not").unwrap();
    assert!(weir_worker::inspect(file.path()).is_err());
    assert!(weir_worker::inspect(std::path::Path::new("/nowhere")).is_err());
}
