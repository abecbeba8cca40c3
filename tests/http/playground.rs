//! The playground: that it is served as a page that browsers can hold to this server, and that it knows the interface.

use axum::http::Method;
use base64::{Engine, engine::general_purpose::STANDARD};
use dichroic::domain::{Category, ModelId, image, text};
use sha2::{Digest, Sha256};

use crate::support::{GUARD_IMAGE, GUARD_TEXT, PRISMS, SUNSHINES, Server, Setup, bare};

async fn page() -> String {
    let page = Server::new().get("/").await;
    page.assert_ok();
    page.text().to_owned()
}

/// What stands between the tags of the page's one block of this kind.
fn block<'a>(page: &'a str, tag: &str) -> &'a str {
    let parts: Vec<&str> = page.split(&format!("<{tag}>")).collect();
    assert_eq!(parts.len(), 2, "{tag}");
    parts[1].split_once(&format!("</{tag}>")).unwrap().0
}

#[tokio::test]
async fn the_page_needs_no_key_and_its_headers_bind_browsers() {
    let page = Server::new().get("/").await;
    page.assert_ok();
    for (name, value) in [
        ("content-type", "text/html; charset=utf-8"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-cache"),
    ] {
        assert_eq!(page.header(name), Some(value), "{name}");
    }
    let [script, style] = ["script", "style"].map(|tag| STANDARD.encode(Sha256::digest(block(page.text(), tag))));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src 'self' data: blob:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    assert_eq!(page.header("content-security-policy"), Some(policy.as_str()));
}

#[tokio::test]
async fn switched_off_there_is_nothing() {
    let server = Server::with(Setup { playground: false, ..Setup::default() });
    for method in [Method::GET, Method::POST] {
        let answer = server.send(bare(method, "/")).await;
        answer.assert_error(404, "not_found");
        assert_eq!(answer.header("content-security-policy"), None);
    }
    server.get("/docs/").await.assert_ok();
}

#[tokio::test]
async fn the_page_loads_nothing_from_anywhere() {
    let page = page().await;
    for foreign in ["http:", "https:", "ws:", "wss:", "\"//", "'//", "`//", "url(", "@import", "import("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    for attribute in ["href", "src"] {
        for address in page.split(&format!(" {attribute}=\"")).skip(1).map(|rest| rest.split('"').next().unwrap()) {
            let icon = address.starts_with("data:image/svg+xml;base64,");
            assert!(icon || ["docs/", "#answers"].contains(&address), "{address}");
        }
    }
}

#[tokio::test]
async fn the_page_keeps_to_what_its_policy_and_its_promises_allow() {
    let page = page().await;
    // Markup made from text, code made from text, inline styles and handlers, and places where a key would stay.
    for forbidden in [
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "DOMParser",
        "eval(",
        "Function(",
        " style=\"",
        " onclick=",
        " onload=",
        "localStorage",
        "indexedDB",
        ".cookie",
        "history.",
        "location",
    ] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
}

#[tokio::test]
async fn the_page_knows_the_interface() {
    let page = page().await;
    for path in [PRISMS, SUNSHINES, GUARD_TEXT, GUARD_IMAGE] {
        assert!(page.contains(&format!(">POST {path}<")), "{path} is not named");
        // Asked by a relative address: a prefix put before the page by a proxy stays.
        assert!(page.contains(&format!("path: \"{}\"", &path[1..])), "{path} is not asked");
    }
    for model in ModelId::ALL {
        assert!(page.contains(&format!("<option value=\"{}\"", model.as_str())), "{model:?}");
    }
    assert!(page.contains(&format!("<option value=\"{}\" selected>", ModelId::default().as_str())));
    for category in Category::ALL {
        assert!(page.contains(&format!("<li data-category=\"{}\">", category.as_str())), "{category:?}");
    }
    assert!(page.contains(&format!("const MAX_CHARACTERS = {};", text::MAX_CHARACTERS)));
    assert!(page.contains("const MAX_IMAGE_BYTES = 10 * 1024 * 1024;"));
    assert_eq!(image::MAX_BYTES, 10 * 1024 * 1024);
    assert!(page.contains(r#"type="range" min="0.1" max="1""#));
}
