//! Odd templates end, within bounds; no message forges a control token; nothing panics.

use proptest::prelude::*;
use weir_text::{ChatMessage, TemplateError};

use crate::fixtures::small_model;

fn user(content: &str) -> ChatMessage {
    ChatMessage::new("user", content)
}

fn render(template: &str, content: &str) -> Result<String, TemplateError> {
    let model = small_model(template).unwrap();
    model.render_chat(&[user(content)], true).map(|rendered| rendered.text().into_owned())
}

#[test]
fn what_would_not_end_runs_out_of_fuel() {
    for template in [
        "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    ] {
        let outcome = render(template, "x");
        let bounded = matches!(outcome, Err(TemplateError::OutOfFuel { .. } | TemplateError::Invalid { .. }));
        assert!(bounded, "{template}: {outcome:?}");
    }
}

#[test]
fn what_would_fill_memory_is_too_large() {
    let doubling = |step: &str| {
        format!(
            "{{% set ns = namespace(x='0123456789abcdef', l=[1]) %}}{{% for i in range(60) %}}{step}{{% endfor %}}{{{{ ns.x }}}}"
        )
    };
    for template in [
        doubling("{% set ns.x = ns.x ~ ns.x %}"),
        doubling("{% set ns.x = ns.x + ns.x %}"),
        doubling("{% set ns.x = ns.x * 2 %}"),
        doubling("{% set ns.x = 2 * ns.x %}"),
        doubling("{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
        doubling("{% set ns.x = ns.x.replace('0', ns.x) %}"),
        doubling("{% set ns.x = ns.x | replace('0', ns.x) %}"),
        doubling("{% set ns.x = [ns.x, ns.x] | join %}"),
        doubling("{% set ns.x = ns.x.join([ns.x, ns.x, ns.x]) %}"),
        doubling("{% set ns.x = [ns.x, ns.x] | tojson %}"),
        doubling("{% set ns.l = ns.l + ns.l %}"),
        doubling("{% set ns.l = [ns.l, ns.l] %}"),
        doubling("{% set ns.l = {'a': ns.l, 'b': ns.l} %}"),
        doubling("{% set ns.l = ns.l * 3 %}"),
        doubling("{% set ns.x = (ns.x ~ '\n' ~ ns.x) | indent(64) %}"),
        "{{ 'x' * 100000000 * 5 }}".to_owned(),
        "{{ ['x' * 10000000] * 1000 | map('upper') | join }}".to_owned(),
        "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = ns.l + [messages[0].content | upper] %}{% endfor %}".to_owned(),
        "{% for i in range(100000) %}{{ messages[0].content }}{% endfor %}".to_owned(),
        format!("{{% for i in range(100000) %}}{}{{% endfor %}}", "raw text ".repeat(2000)),
    ] {
        let outcome = render(&template, &"content ".repeat(10_000));
        let shown = outcome.as_ref().map(String::len);
        // minijinja bounds repetition itself, lower.
        let repeated = template.contains(" * ") && matches!(outcome, Err(TemplateError::Invalid { .. }));
        assert!(repeated || matches!(outcome, Err(TemplateError::TooLarge { .. })), "{template:.120}: {shown:?}");
    }
}

#[test]
fn what_real_templates_do_with_long_messages_fits() {
    let template = "{% set rest = [{'role': 'system', 'content': 'x'}] + messages %}{% for m in rest[1:] %}{% if 'zzz' not in m.content %}\
        {% set content = m.content.strip() | replace('y', 'z') %}{{ '<|im_start|>' + m.role + '\n' + content + '<|im_end|>' }}{% endif %}{% endfor %}";
    let content = "word ".repeat(800_000);
    assert_eq!(
        render(template, &content).unwrap().trim_start().len(),
        content.trim().len() + "<|im_start|>user\n<|im_end|>".len()
    );
}

#[test]
fn odd_templates_are_errors_of_the_template() {
    for template in [
        "{{ ''[::-1][0].x.y }}",
        "{{ messages[99].content }}",
        "{{ undefined_function() }}",
        "{% include 'other' %}",
        "{% extends 'other' %}",
        "{% set ns = namespace(x=1) %}{% set ns.x = ns %}{{ ns }}",
        "{{ 1 // 0 }}",
        "{{ messages[0].content is divisibleby(0) }}",
        "{{ raise_exception }}",
        "{{ 'x'.format_map(1) }}",
        "{{ strftime_now('%Y') }}",
        "{{ 9223372036854775807 * 9223372036854775807 * 9223372036854775807 * 9223372036854775807 }}",
    ] {
        let outcome = render(template, "secret");
        let Err(TemplateError::Invalid { line: _, reason }) = &outcome else {
            panic!("{template}: {outcome:?}")
        };
        assert!(!reason.contains("panicked") && !reason.contains("secret"), "{template}: {reason}");
    }
    assert!(
        render("{{ 5 is divisibleby(messages | length - 1) }}{{ messages[0].content[9:][::-1] }}", "x")
            .is_ok()
    );
    for template in [
        "{{ 5 is divisibleby(0) }}",
        "{% for %}",
        "{{ ",
        "{% if x %}",
        "{% nonsense %}",
        &"{% if x %}".repeat(5000),
        &"(".repeat(10_000),
    ] {
        let built = small_model(&format!("{template}{{{{ x }}"));
        assert!(built.is_err(), "{template:.40}");
    }
}

#[test]
fn a_clock_is_only_there_when_given() {
    let model =
        small_model("{{ strftime_now('%d %b %Y') if strftime_now is defined else 'today' }}").unwrap();
    let now = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_709_164_800);
    let at = |now| model.render_chat_at(&[user("x")], &[], true, now).unwrap().text().into_owned();
    assert_eq!(at(None), "today");
    assert_eq!(at(Some(now)), "29 Feb 2024");
    let model = small_model("{{ strftime_now('%Q%!') }}").unwrap();
    assert!(matches!(
        model.render_chat_at(&[user("x")], &[], true, Some(now)),
        Err(TemplateError::Invalid { .. })
    ));
}

#[test]
fn begin_of_sequence_is_never_doubled() {
    let chat = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}";
    for template in [chat.to_owned(), format!("{{{{ bos_token }}}}{chat}"), format!("<s>{chat}")] {
        let model = small_model(&template).unwrap();
        let ids = model.encode_rendered(&model.render_chat(&[user("<s>hi")], true).unwrap()).unwrap();
        let bos = model.encode("").unwrap();
        assert_eq!(bos.len(), 1);
        assert_eq!(ids[0], bos[0]);
        assert_eq!(ids.iter().filter(|&&id| id == bos[0]).count(), 1, "{template}");
    }
}

const TEMPLATES: [&str; 6] = [
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] | trim + '<|im_end|>' }}{% endfor %}",
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content.upper() }}|{{ m.content | lower }}<|im_end|>{% endfor %}",
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ m.name }}<|end|>{% endfor %}",
    "{% for m in messages %}<|im_start|>{{ m.content.strip() }}<|im_end|>{{ m.name | default('') }}<|end|>{% endfor %}",
    "{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s ~ '<|im_start|>' ~ m.content ~ '<|im_end|>' %}{% endfor %}{{ ns.s }}",
];

/// Pieces of which control tokens can be made.
fn forgery() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        prop::sample::select(vec![
            "<|im_start|>",
            "<|im_end|>",
            "<|IM_END|>",
            "<|endoftext|>",
            "<s>",
            "</s>",
            "[INST]",
            "<|",
            "|>",
            "im_",
            "<|im_start",
            "_end|>",
            "<|user|",
            "<|<|im_end|>im_end|>",
            "\u{FDD0}",
            "\u{FDD1}",
            "<\u{FDD0}|im_end|>",
            " ",
            "\n",
            "<|end|>",
            "<",
            ">",
        ])
        .prop_map(str::to_owned),
        "\\PC{0,3}",
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_message_forges_a_control_token(contents in prop::collection::vec((forgery(), prop::option::of(forgery())), 1..4)) {
        for template in TEMPLATES {
            let model = small_model(template).unwrap();
            let conversation = |contents: &[(String, Option<String>)]| -> Vec<ChatMessage> {
                contents.iter().map(|(content, name)| ChatMessage { name: name.clone(), ..user(content) }).collect()
            };
            // The same conversation with harmless words has the control tokens that the template itself writes.
            let harmless: Vec<_> = contents.iter().map(|(_, name)| ("x".to_owned(), name.as_ref().map(|_| "y".to_owned()))).collect();
            let control = |messages: &[ChatMessage]| -> Vec<u32> {
                let rendered = model.render_chat(messages, true).unwrap();
                let ids = model.encode_rendered(&rendered).unwrap();
                ids.into_iter().filter(|&id| model.token_bytes(id).is_empty()).collect()
            };
            prop_assert_eq!(control(&conversation(&contents)), control(&conversation(&harmless)), "{}", template);
        }
    }

    #[test]
    fn guards_never_show(content in forgery()) {
        let model = small_model(TEMPLATES[0]).unwrap();
        let rendered = model.render_chat(&[user(&content)], true).unwrap();
        prop_assert_eq!(rendered.text(), format!("<|im_start|>user\n{content}<|im_end|>\n"));
        let decoded = model.decode(&model.encode_rendered(&rendered).unwrap());
        prop_assert_eq!(decoded, format!("user\n{content}\n"));
    }

    #[test]
    fn no_template_panics(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "{{", "}}", "{%", "%}", "{#", "#}", " for m in messages ", " endfor ", " if ", " else ", " endif ", " set x = ", " m.content ", "messages", "[", "]", "(", ")",
            ":", "::-1", "-1", "0", "99999999999", "|", "join", "trim", "tojson", "length", "map", "'a'", "''", "~", "+", "*", "//", "%", "in", "not", "is", "defined", ".",
            "x", "namespace", "range", "macro f()", "endmacro", "f()", "split", "strip", "items", ",", "=", "==", "loop", "loop.index", "-", "raw", "endraw", "{", "}", "\n", "none", "break",
        ]), 0..30),
        content in "\\PC{0,10}",
    ) {
        if let Ok(model) = small_model(&pieces.concat()) {
            let outcome = model.render_chat(&[user(&content)], true);
            let panicked = matches!(&outcome, Err(TemplateError::Invalid { reason, .. }) if reason.contains("panicked"));
            prop_assert!(!panicked, "{:?}", outcome);
        }
    }

    #[test]
    fn no_expression_panics(
        expressions in prop::collection::vec(
            ("[ -~]{0,3}(x|messages|''|'é'|\\[1,2\\]|\\{'a':1\\}|5|-1|2.5|none|true)",
             prop::sample::select(vec![
                "[::-1]", "[-5:99:-2]", "[1:]", "[0]", "['a']", ".a", ".split('é')", ".split()", ".rsplit(none,1)", ".strip('é')", ".replace('','-')", ".join([x])", ".title()", ".find('')",
                "|sort", "|unique", "|first", "|last", "|list", "|items", "|dictsort", "|groupby('a')", "|selectattr('a')", "|round(30)", "|round(-5)", "|abs", "|int", "|float", "|min", "|max",
                "|tojson(indent=3)", "|indent(3)", "|default(x)", "|replace('','x')", "|length", "|string", "|attr('a')", "|bool", "*x", "*-1", "*99", "**99", "**-1", "//0", "%0", "/0", "~x", "+x", "-x", " in x", " is odd", " is divisibleby(0)",
             ])),
            1..3),
        content in "\\PC{0,6}",
    ) {
        let expression: String = expressions.iter().map(|(base, tail)| format!("{base}{tail}")).collect::<Vec<_>>().join("+");
        if let Ok(model) = small_model(&format!("{{% set x = messages[0].content %}}{{{{ {expression} }}}}")) {
            let outcome = model.render_chat(&[user(&content)], true);
            let panicked = matches!(&outcome, Err(TemplateError::Invalid { reason, .. }) if reason.contains("panicked"));
            prop_assert!(!panicked, "{}: {:?}", expression, outcome);
        }
    }
}
