//! The playground: one page on which a person tries the operations with a key of theirs.
//!
//! Owns the page at `/`, which is in the binary, and the policy that browsers hold it to. Refuses any outside origin
//! and any script or style but the page's own, known by their hashes. Runs on the tokio threads.

use std::sync::LazyLock;

use axum::{
    http::header,
    response::{Html, IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use sha2::{Digest, Sha256};

const PAGE: &str = include_str!("playground.html");

static CONTENT_SECURITY_POLICY: LazyLock<String> = LazyLock::new(|| {
    let (script, style) = (source(PAGE, "script"), source(PAGE, "style"));
    format!(
        "default-src 'none'; script-src {script}; style-src {style}; img-src 'self' data: blob:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
});

/// The page.
pub(super) async fn page() -> Response {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY.as_str()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Html(PAGE)).into_response()
}

/// What allows the one inline block of this kind, a hash over all that stands between its tags (Content Security Policy
/// Level 3, "hash-source"); without such a block, nothing.
fn source(page: &str, tag: &str) -> String {
    let block = page.split_once(&format!("<{tag}>")).and_then(|(_, rest)| rest.split_once(&format!("</{tag}>")));
    block.map_or_else(
        || "'none'".to_owned(),
        |(block, _)| format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(block))),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_hashed_as_browsers_do() {
        // The specification's own example.
        let hash = "'sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng='";
        let page = "<noscript>no</noscript><script>alert('Hello, world.');</script><script>more()</script>";
        assert_eq!(source(page, "script"), hash);
        assert_eq!(source(page, "style"), "'none'");
    }

    #[test]
    fn each_block_of_the_page_is_the_only_one() {
        for tag in ["script", "style"] {
            assert_eq!(PAGE.matches(&format!("<{tag}")).count(), 1, "{tag}");
            assert_eq!(PAGE.matches(&format!("<{tag}>")).count(), 1, "{tag}");
        }
        // A parser turns them into line feeds before it hashes.
        assert!(!PAGE.contains('\r'));
    }
}
