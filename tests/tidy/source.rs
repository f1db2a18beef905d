//! Rules that a text search can hold.

use std::path::Path;

use crate::tree::{rust_files, text_files};

fn is_test(path: &Path) -> bool {
    let text = path.to_str().unwrap();
    text.starts_with("tests/")
        || text.contains("/tests/")
        || text.ends_with("/tests.rs")
        || text.contains("/examples/")
}

/// `path:line` of every line outside tests that `matches`.
fn lines_where(matches: impl Fn(&Path, &str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in rust_files().iter().filter(|(path, _)| !is_test(path)) {
        // In-file test modules come last in a file.
        let code = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"));
        let hits = code.enumerate().filter(|(_, line)| matches(path, line));
        found
            .extend(hits.map(|(number, line)| format!("{}:{}: {}", path.display(), number + 1, line.trim())));
    }
    found
}

fn none(found: Vec<String>) {
    assert_eq!(found, Vec::<String>::new());
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

#[test]
fn sql_stands_where_it_belongs() {
    let allowed = [
        "control-plane/server/src/store",
        "control-plane/ledger/src/store",
        "control-plane/ledger/src/verify",
    ];
    let in_store = |path: &Path| {
        allowed.iter().any(|dir| path.starts_with(dir) || path == Path::new(&format!("{dir}.rs")))
    };
    none(lines_where(|path, line| {
        let sql = ["sqlx::query", "query_as::<", "query_scalar::<", "QueryBuilder::"]
            .iter()
            .any(|call| line.contains(call));
        sql && !in_store(path)
    }));
}

#[test]
fn the_scheduler_and_the_kv_cache_do_not_know_the_model() {
    let blind = |path: &Path| {
        ["scheduler", "kv_cache"]
            .iter()
            .any(|part| path.to_str().unwrap().contains(&format!("engine/src/{part}")))
    };
    none(lines_where(|path, line| {
        blind(path) && (line.contains("crate::model") || line.contains("super::model"))
    }));
}

#[test]
fn the_engine_has_no_wall_clock_no_runtime_and_no_tenant_names() {
    let engine = |path: &Path| path.starts_with("data-plane/engine/src");
    none(lines_where(|path, line| {
        engine(path)
            && !is_comment(line)
            && ["tokio::", "SystemTime", "TenantId", "chrono"].iter().any(|word| line.contains(word))
    }));
}

#[test]
fn nothing_is_left_for_later_in_the_code() {
    none(lines_where(|_, line| {
        ["TODO", "FIXME", "XXX", "todo!(", "unimplemented!("].iter().any(|mark| line.contains(mark))
    }));
    let ignored: Vec<_> = rust_files()
        .into_iter()
        .filter(|(_, text)| text.contains(concat!("#[", "ignore")))
        .map(|(path, _)| path)
        .collect();
    assert!(ignored.is_empty(), "ignored tests: {ignored:?}");
}

#[test]
fn tasks_have_owners_and_modules_have_names() {
    none(lines_where(|_, line| !is_comment(line) && line.contains("tokio::spawn(")));
    let mod_files: Vec<_> = rust_files().into_iter().filter(|(path, _)| path.ends_with("mod.rs")).collect();
    assert!(mod_files.is_empty(), "use foo.rs + foo/: {mod_files:?}");
    let vague = ["utils.rs", "util.rs", "helpers.rs", "helper.rs", "common.rs", "misc.rs", "manager.rs"];
    let named: Vec<_> = rust_files()
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| vague.iter().any(|name| path.ends_with(name)))
        .collect();
    assert!(named.is_empty(), "name them by their noun: {named:?}");
}

#[test]
fn every_source_file_is_a_module_of_another_or_a_target() {
    let files = rust_files();
    let names = |parent: &Path, module: &str| {
        let declaration = format!("mod {module};");
        let text = files.iter().find(|(path, _)| path == parent).map(|(_, text)| text.as_str());
        text.is_some_and(|text| {
            text.lines().any(|line| line.trim() == declaration || line.ends_with(&format!(" {declaration}")))
        })
    };
    let orphans: Vec<_> = files
        .iter()
        .map(|(path, _)| path)
        .filter(|path| {
            let folder = path.parent().unwrap();
            let module = path.file_stem().unwrap().to_str().unwrap();
            let parents = match folder.ends_with("src") {
                true => vec![folder.join("lib.rs"), folder.join("main.rs")],
                false => vec![folder.with_extension("rs")],
            };
            let is_target = folder.ends_with("src/bin") || parents.contains(path);
            let is_in_src = path.components().any(|part| part.as_os_str() == "src");
            is_in_src && !is_target && !parents.iter().any(|parent| names(parent, module))
        })
        .collect();
    assert!(orphans.is_empty(), "no module names them: {orphans:?}");
}

#[test]
fn every_module_says_what_it_owns() {
    let silent: Vec<_> = rust_files()
        .into_iter()
        .filter(|(path, text)| {
            path.to_str().unwrap().contains("/src/") && !is_test(path) && !text.starts_with("//!")
        })
        .map(|(path, _)| path)
        .collect();
    assert!(silent.is_empty(), "begin with a //! line: {silent:?}");
}

#[test]
fn no_path_of_a_machine_and_no_key_stands_in_the_tree() {
    let home = [concat!("/", "home/"), concat!("/", "Users/"), concat!("/", "root/")];
    let private_key = concat!("-----BEGIN ", "PRIVATE KEY");
    let found: Vec<_> = text_files()
        .into_iter()
        .filter(|(path, _)| !path.ends_with("source.rs"))
        .filter(|(_, text)| home.iter().any(|dir| text.contains(dir)) || text.contains(private_key))
        .map(|(path, _)| path)
        .collect();
    assert!(found.is_empty(), "{found:?}");
}
