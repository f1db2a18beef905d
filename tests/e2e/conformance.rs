//! Conformance: the gateway's own document, and others' tests: OpenAI's clients for Python and Node, LangChain's chat model,
//! an independent tester. What is not supported stands in a fixed list with its reason; anything else that fails, or that is on the list and
//! passes, fails this test. The results are the table of `docs/conformance.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::json;
use weir_tests::api::Api;
use weir_tests::conformance::{run_node, run_python};
use weir_tests::installation::{Installation, repository};

#[derive(Debug, Deserialize)]
struct Checked {
    suite: String,
    check: String,
    passed: bool,
    detail: String,
}

fn all(installation: &Installation, key: &str) -> Vec<Checked> {
    let scripts = ["openapi_document.py", "openai_python.py", "langchain_client.py", "llm_comply.py"];
    let mut said: Vec<_> = scripts.iter().flat_map(|script| run_python(script, installation, key)).collect();
    said.extend(run_node("openai_node.mjs", installation, key));
    said.into_iter().map(|line| serde_json::from_value(line).unwrap()).collect()
}

fn table(checked: &[Checked], unsupported: &BTreeMap<String, String>) -> String {
    let mut table = String::from("| suite | check | result |\n| --- | --- | --- |\n");
    for Checked { suite, check, .. } in checked {
        let result = unsupported.get(&format!("{suite}/{check}"));
        let result = result.map_or("passes".to_owned(), |reason| format!("not supported: {reason}"));
        writeln!(table, "| {suite} | {check} | {result} |").unwrap();
    }
    table
}

#[tokio::test(flavor = "multi_thread")]
async fn others_tests_pass_but_for_a_fixed_list() {
    let installation = Installation::start();
    let operator = Api::operator(&installation);
    let tenant = operator.create_tenant("conformance", json!({}), chrono::Utc::now()).await;
    let key = operator.create_key(&tenant.id, &["inference"], chrono::Utc::now()).await;
    let token = key["token"].as_str().unwrap().to_owned();
    let checked = tokio::task::block_in_place(|| all(&installation, &token));
    let list = std::fs::read(repository().join("tests/conformance/unsupported.json")).unwrap();
    let unsupported: BTreeMap<String, String> = serde_json::from_slice(&list).unwrap();
    let name = |of: &Checked| format!("{}/{}", of.suite, of.check);
    let surprises = checked.iter().filter(|of| of.passed == unsupported.contains_key(&name(of)));
    let surprises: Vec<_> =
        surprises.map(|of| format!("{} passed: {} {}", name(of), of.passed, of.detail)).collect();
    assert!(surprises.is_empty(), "{surprises:#?}");
    let names: Vec<_> = checked.iter().map(name).collect();
    assert!(unsupported.keys().all(|listed| names.contains(listed)), "a check on the list is not run");
    let docs = repository().join("docs/conformance.md");
    let text = std::fs::read_to_string(&docs).unwrap();
    let (before, rest) = text.split_once("<!-- results -->\n").expect("the table's place is marked");
    let (_, after) = rest.split_once("<!-- end -->").expect("the table's end is marked");
    let current = format!("{before}<!-- results -->\n{}<!-- end -->{after}", table(&checked, &unsupported));
    if std::env::var_os("WEIR_UPDATE").is_some() {
        std::fs::write(&docs, &current).unwrap();
    }
    assert!(text == current || std::env::var_os("WEIR_UPDATE").is_some(), "run this test with WEIR_UPDATE=1");
}
