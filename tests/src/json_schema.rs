//! Validation against the JSON Schemas that consumers of our records hold us to.

use serde_json::Value;

/// What is wrong with `instance`; nothing if it satisfies the schema.
pub fn problems(schema: &Value, instance: &Value) -> Vec<String> {
    let validator = jsonschema::validator_for(schema).unwrap();
    validator.iter_errors(instance).map(|error| error.to_string()).collect()
}
