//! `openapi.yaml` is what is served, and the docs page loads nothing from outside.

use std::path::Path;

use crate::support::Installation;

#[tokio::test]
async fn openapi_yaml_is_what_is_served() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let served = plane.send("GET", "/openapi.yaml", "", &[], None).await;
    assert_eq!(served.headers["content-type"], "application/yaml");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi.yaml");
    if std::env::var_os("WEIR_UPDATE").is_some() {
        std::fs::write(&file, &served.text).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        kept == served.text,
        "openapi.yaml is stale: WEIR_UPDATE=1 cargo test --release -p weir-server openapi, or make openapi"
    );
    assert_eq!(weir_server::openapi_yaml(), served.text);
    plane.stop().await;
}

#[tokio::test]
async fn the_docs_page_loads_nothing_from_outside() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let mut pages = vec!["/docs/".to_owned()];
    let page = plane.send("GET", "/docs/", "", &[], None).await;
    assert_eq!(page.status, 200, "{}", page.text);
    let mut assets: Vec<String> = Vec::new();
    for attribute in ["src=\"", "href=\""] {
        assets.extend(
            page.text.split(attribute).skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()),
        );
    }
    assert!(assets.len() > 3, "{assets:?}");
    for asset in &assets {
        assert!(!asset.contains("//"), "{asset}");
        pages.push(format!("/docs/{}", asset.trim_start_matches("./")));
    }
    let initializer = plane.send("GET", "/docs/swagger-initializer.js", "", &[], None).await;
    assert!(initializer.text.contains("/docs/openapi.json"), "{}", initializer.text);
    assert!(initializer.text.contains("\"validatorUrl\": \"none\""), "{}", initializer.text);
    for path in pages {
        let answer = plane.send("GET", &path, "", &[], None).await;
        assert_eq!(answer.status, 200, "{path}");
        let policy = answer.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'self'"), "{policy}");
    }
    plane.stop().await;
}
