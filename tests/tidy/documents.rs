//! The documents tell the truth about the tree: every path they name in backticks exists.

use crate::tree::root;

const DOCUMENTS: &[&str] = &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];
/// Paths that exist only once something ran.
const MADE_AT_RUN_TIME: &[&str] = &[".weir/", ".cache/", "target/"];

#[test]
fn every_path_named_in_the_documents_exists() {
    let mut checked = 0;
    for document in DOCUMENTS {
        let text = std::fs::read_to_string(root().join(document)).unwrap();
        let looks_like_path = |word: &&str| {
            word.contains('/')
                && !word.starts_with('/')
                && !word.contains([' ', ':', '*', '<', '{', '$', '…', '|', '='])
        };
        // Odd pieces between backticks are code.
        for named in text.split('`').skip(1).step_by(2).filter(looks_like_path) {
            if MADE_AT_RUN_TIME.iter().any(|prefix| named.starts_with(prefix)) {
                continue;
            }
            assert!(root().join(named).exists(), "{document} names `{named}`, which does not exist");
            checked += 1;
        }
    }
    assert!(checked >= 20, "only {checked} paths found: the documents or this test changed shape");
}

#[test]
fn the_two_commands_come_first() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let (up, test) = (readme.find("make up").unwrap(), readme.find("make test").unwrap());
    assert!(up < 1_200 && test < 1_200, "README shows `make up` and `make test` first");
}
