//! Whether the routes that are served and those that are described are the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use serde_json::Value;

use super::{DOCUMENT, NOT_DESCRIBED};

/// A sentence for each route that is served and not described, or described and not served. The
/// router tells its routes in its debug format alone (axum 0.8): where that changes, they all differ.
pub(crate) fn differences(router: &impl Debug) -> Vec<String> {
    compare(&served(&format!("{router:?}")), &DOCUMENT)
}

type Methods = BTreeMap<String, BTreeSet<String>>;

fn compare(served: &Methods, document: &Value) -> Vec<String> {
    let mut described = Methods::new();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        let methods = item.as_object().into_iter().flatten();
        let methods = methods.map(|(method, _)| method.to_ascii_uppercase());
        described.insert(path.clone(), methods.collect());
    }
    for (path, _) in NOT_DESCRIBED {
        // Whatever methods it takes.
        let methods = served.get(*path).cloned();
        described.insert((*path).into(), methods.unwrap_or_default());
    }
    let mut faults = Vec::new();
    for path in served
        .keys()
        .chain(described.keys())
        .collect::<BTreeSet<_>>()
    {
        match (served.get(path), described.get(path)) {
            (Some(served), Some(described)) if served == described => {}
            (served, described) => faults.push(format!(
                "{path}: served {served:?}, described {described:?}"
            )),
        }
    }
    faults
}

/// Paths and methods of a router: `RouteId(1): MethodRouter(… allow_header: Bytes(b"GET,HEAD") …)` and
/// `RouteId(1): "/health"`. A route that takes any method has none.
fn served(router: &str) -> Methods {
    let router = router.split("fallback_router:").next().unwrap_or_default();
    let (routes, paths) = router.split_once("node: Node").unwrap_or_default();
    let mut methods = BTreeMap::new();
    for route in routes.split("RouteId(").skip(1) {
        let id = route.split(')').next().unwrap_or_default();
        let allowed = route.split("allow_header: Bytes(b\"").nth(1);
        let allowed = allowed.and_then(|rest| rest.split('"').next());
        let allowed = allowed.unwrap_or_default().split(',');
        // What answers GET answers HEAD.
        let allowed = allowed.filter(|method| !method.is_empty() && *method != "HEAD");
        methods.insert(id, allowed.map(String::from).collect::<BTreeSet<_>>());
    }
    let mut served = Methods::new();
    for path in paths.split("RouteId(").skip(1) {
        let id = path.split(')').next().unwrap_or_default();
        if let Some(path) = path.split('"').nth(1) {
            let path = path.replace("{*", "{");
            served.insert(path, methods.get(id).cloned().unwrap_or_default());
        }
    }
    served
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::{any, get};
    use serde_json::json;

    use super::*;

    #[test]
    fn routes_are_read_from_a_router() {
        let answer = async || "";
        let router: Router = Router::new()
            .route("/one", get(answer).post(answer))
            .route("/two/{id}/{*rest}", any(answer))
            .fallback(answer)
            .layer(axum::extract::DefaultBodyLimit::disable());
        let served = served(&format!("{router:?}"));
        let methods = |path: &str| served[path].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(served.len(), 2, "{served:?}");
        assert_eq!(methods("/one"), ["GET", "POST"]);
        assert!(methods("/two/{id}/{rest}").is_empty());
    }

    #[test]
    fn a_route_more_or_less_is_a_difference() {
        let answer = async || "";
        let router: Router = Router::new()
            .route("/here", get(answer))
            .route("/undescribed", get(answer));
        let document = json!({ "paths": {
            "/here": { "get": {}, "delete": {} },
            "/unserved": { "get": {} },
        } });
        let faults = compare(&served(&format!("{router:?}")), &document).join("\n");
        for path in ["/here", "/undescribed", "/unserved", "/mcp"] {
            assert!(
                faults.contains(&format!("{path}: served")),
                "{path}: {faults}"
            );
        }
    }
}
