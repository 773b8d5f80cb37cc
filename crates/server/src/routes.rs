//! The table of all routes. Every route is also described in the OpenAPI document.

use axum::routing::{delete, get, post};

use crate::route::{Route, at, delete_only, get_only, post_only};
use crate::{anthropic, health, metrics, model_control, monitor, ollama, openai, openapi};

/// All routes.
pub(crate) fn all() -> Vec<Route> {
    [openai(), anthropic(), ollama(), models(), state(), monitor::routes(), description()]
        .into_iter()
        .flatten()
        .collect()
}

fn openai() -> Vec<Route> {
    let response = get(openai::responses::show_response)
        .delete(openai::responses::delete_response)
        .post(openai::responses::unknown_verb);
    vec![
        post_only("/v1/chat/completions", post(openai::chat::chat)),
        post_only("/v1/completions", post(openai::completions::completions)),
        post_only("/v1/embeddings", post(openai::embeddings::embeddings)),
        post_only("/tokenize", post(openai::tokenize::tokenize)),
        post_only("/detokenize", post(openai::tokenize::detokenize)),
        post_only("/v1/responses", post(openai::responses::create_response)),
        at("/v1/responses/{id}", openai::responses::RESPONSE_METHODS, response),
        get_only("/v1/responses/{id}/input_items", get(openai::responses::list_input_items)),
    ]
}

fn anthropic() -> Vec<Route> {
    vec![
        post_only("/v1/messages", post(anthropic::messages::messages)),
        post_only("/v1/messages/count_tokens", post(anthropic::messages::count_tokens)),
        get_only("/v1/models", get(anthropic::models::list_models)),
        get_only("/v1/models/{*id}", get(anthropic::models::show_model)),
    ]
}

fn ollama() -> Vec<Route> {
    vec![
        post_only("/api/chat", post(ollama::chat::chat)),
        post_only("/api/generate", post(ollama::generate::generate)),
        post_only("/api/embed", post(ollama::embed::embed)),
        post_only("/api/embeddings", post(ollama::embed::embeddings)),
        get_only("/api/tags", get(ollama::models::tags)),
        get_only("/api/ps", get(ollama::models::ps)),
        get_only("/api/version", get(ollama::models::version)),
        post_only("/api/show", post(ollama::models::show)),
        post_only("/api/pull", post(ollama::pull::pull)),
        delete_only("/api/delete", delete(ollama::models::delete)),
        post_only("/api/copy", post(ollama::models::copy)),
        post_only("/api/create", post(ollama::models::unsupported)),
        post_only("/api/push", post(ollama::models::unsupported)),
        post_only("/api/blobs/{digest}", post(ollama::models::unsupported)),
    ]
}

fn models() -> Vec<Route> {
    vec![
        post_only("/model/load", post(model_control::load)),
        post_only("/model/unload", post(model_control::unload)),
        post_only("/model/gc", post(model_control::unload_unused)),
    ]
}

fn state() -> Vec<Route> {
    vec![
        get_only("/health", get(health::health)),
        get_only("/health/live", get(health::live)),
        get_only("/health/ready", get(health::ready)),
        get_only("/version", get(health::version)),
        get_only("/metrics", get(metrics::metrics)),
    ]
}

fn description() -> Vec<Route> {
    vec![
        get_only("/openapi.json", get(openapi::openapi)),
        get_only("/docs", get(openapi::docs_root)),
        get_only("/docs/", get(openapi::docs)),
        get_only("/docs/{*path}", get(openapi::docs)),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_route_is_described_and_nothing_else() {
        let mut served = BTreeSet::new();
        for Route { path, allowed, .. } in all() {
            // HEAD is answered wherever GET is.
            for method in allowed.split(", ").filter(|method| *method != "HEAD") {
                served.insert((path.replace("{*", "{"), method.to_lowercase()));
            }
        }
        let document = serde_json::to_value(openapi::document()).unwrap();
        let mut described = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for method in item.as_object().unwrap().keys() {
                described.insert((path.clone(), method.clone()));
            }
        }
        assert_eq!(served, described);
    }
}
