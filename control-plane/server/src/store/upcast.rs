//! Old event shapes, turned into today's when read; what is stored stays as it is. Each step takes one versioned
//! name to the next, so an event of any age arrives at the shape that the domain knows.

use serde_json::Value;
use weir_domain::event::StoredForm;

/// One step: an old name, the name it becomes, and how its data changes.
struct Step {
    from: &'static str,
    to: &'static str,
    change: fn(Value) -> Value,
}

/// Every step there is. None yet: all events are of their first version.
static STEPS: [Step; 0] = [];

/// `stored` in today's shape.
pub(super) fn upcast(stored: StoredForm) -> StoredForm {
    apply(&STEPS, stored)
}

fn apply(steps: &[Step], mut stored: StoredForm) -> StoredForm {
    while let Some(step) = steps.iter().find(|step| step.from == stored.event_type) {
        stored = StoredForm { event_type: step.to.to_owned(), data: (step.change)(stored.data) };
    }
    stored
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_of_any_age_arrives_at_the_latest_shape() {
        let steps = [
            Step {
                from: "cup.filled.v1",
                to: "cup.filled.v2",
                change: |data| json!({"ml": data["cl"].as_u64().unwrap() * 10}),
            },
            Step {
                from: "cup.filled.v2",
                to: "cup.filled.v3",
                change: |data| json!({"ml": data["ml"], "of": "water"}),
            },
        ];
        let stored = |event_type: &str, data| StoredForm { event_type: event_type.into(), data };
        let latest = stored("cup.filled.v3", json!({"ml": 250, "of": "water"}));
        for old in [
            stored("cup.filled.v1", json!({"cl": 25})),
            stored("cup.filled.v2", json!({"ml": 250})),
            latest.clone(),
        ] {
            assert_eq!(apply(&steps, old), latest);
        }
    }
}
