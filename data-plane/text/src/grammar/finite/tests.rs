use serde_json::json;

use super::*;

fn of(schema: &Value) -> Option<(String, String)> {
    endless(schema).map(|Endless { needed, back_to }| (needed, back_to))
}

fn node(next: &Value) -> Value {
    json!({"type": "object", "properties": {"v": {"type": "integer"}, "next": next}, "required": ["v", "next"]})
}

#[test]
fn what_needs_its_own_kind_without_end_is_found_with_where() {
    let again = json!({"$ref": "#"});
    let check = |schema: Value, needed: &str, back_to: &str| {
        assert_eq!(of(&schema), Some((needed.to_owned(), back_to.to_owned())), "{schema}");
    };
    check(again.clone(), "#", "#");
    check(node(&again), "#/properties/next", "#");
    check(node(&json!({"anyOf": [again]})), "#/properties/next/anyOf/0", "#");
    check(node(&json!({"allOf": [{"title": "next"}, again]})), "#/properties/next/allOf/1", "#");
    check(node(&json!({"type": "array", "items": again, "minItems": 1})), "#/properties/next/items", "#");
    check(json!({"type": "array", "prefixItems": [{}, again], "minItems": 2}), "#/prefixItems/1", "#");
    check(json!({"type": "array", "items": [{}, again], "minItems": 2}), "#/items/1", "#");
    check(
        json!({"type": "object", "additionalProperties": again, "minProperties": 1}),
        "#/additionalProperties",
        "#",
    );
    check(
        json!({"type": "object", "additionalProperties": again, "required": ["a"]}),
        "#/additionalProperties",
        "#",
    );
    let defs = json!({"a": node(&json!({"$ref": "#/$defs/b"})), "b": node(&json!({"$ref": "#/$defs/a"}))});
    check(json!({"$ref": "#/$defs/a", "$defs": defs}), "#/$defs/b/properties/next", "#/$defs/a");
    // A type that the other alternatives do not have.
    let alternatives = json!([again, {"type": "null"}]);
    check(
        node(&json!({"allOf": [{"anyOf": alternatives}, {"type": "object"}, node(&again)]})),
        "#/properties/next/allOf/2/properties/next",
        "#",
    );
}

#[test]
fn what_can_end_is_not_refused() {
    let again = json!({"$ref": "#"});
    for schema in [
        node(&json!({"anyOf": [again, {"type": "null"}]})),
        node(&json!({"oneOf": [{"type": "null"}, again]})),
        node(&json!({"type": "array", "items": again})),
        node(&json!({"type": "array", "prefixItems": [{}, again], "minItems": 1})),
        node(&json!({"type": "object", "additionalProperties": again})),
        json!({"type": "object", "properties": {"next": again}}),
        json!({"type": "object", "properties": {"a": {}}, "additionalProperties": again, "minProperties": 1}),
        // Without a type it is anything but an object.
        json!({"properties": {"next": again}, "required": ["next"]}),
        json!({"type": ["object", "null"], "properties": {"next": again}, "required": ["next"]}),
        // What the compiler has to say of.
        json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}, "required": ["a"]}),
        json!({"$ref": "#named"}),
        json!({"allOf": [{"type": "string"}, {"type": "null"}]}),
        json!({"$defs": {"a": {"$id": "https://example.com/a", "$ref": "#"}}, "$ref": "#"}),
        json!({"const": {"$ref": "#"}}),
        json!({}),
    ] {
        assert_eq!(of(&schema), None, "{schema}");
    }
}

#[test]
fn chains_are_followed_and_no_schema_takes_long() {
    let chain = |last: Value, link: fn(usize) -> Value| {
        let mut defs: Map<String, Value> = (0..2_000).map(|at| (at.to_string(), link(at + 1))).collect();
        defs.insert("2000".to_owned(), last);
        json!({"$defs": defs, "$ref": "#/$defs/0"})
    };
    let link = |to: usize| json!({"$ref": format!("#/$defs/{to}")});
    assert_eq!(of(&chain(json!({"type": "null"}), link)), None);
    assert!(of(&chain(json!({"$ref": "#/$defs/7"}), link)).is_some());
    // An order that helps nobody, and a lot to look at each time.
    let scattered = |to: usize| {
        let to = (to * 1_237) % 2_000;
        json!({"type": "object", "required": vec!["a"; 10], "properties": {"a": {"$ref": format!("#/$defs/{to}")}}})
    };
    let mut schema = chain(json!({}), scattered);
    schema["required"] = json!(vec!["b"; 20_000]);
    let started = std::time::Instant::now();
    let _ = endless(&schema);
    assert!(started.elapsed().as_secs() < 2, "{:?}", started.elapsed());
}
