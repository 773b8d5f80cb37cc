//! All routes, in groups, and what follows from them: the router and the OpenAPI document.

use axum::{Json, Router};
use utoipa::openapi::OpenApi;

use crate::requests::admitted;
use crate::route::{self, Route, get};
use crate::state::ServerState;
use crate::{administration, anthropic, health, model_control, monitor, ollama, openai, openapi};

/// All routes, in groups with the tags of the OpenAPI document.
fn all() -> Vec<(&'static str, Vec<Route>)> {
    vec![
        ("OpenAI", openai::routes()),
        ("tokens", openai::token_routes()),
        ("models", anthropic::model_routes()),
        ("Anthropic", anthropic::routes()),
        ("Ollama", ollama::routes()),
        ("models", model_control::routes()),
        ("administration", administration::routes()),
        ("state", health::routes()),
        ("state", monitor::routes()),
        ("description", description()),
    ]
}

fn description() -> Vec<Route> {
    let document = get("/openapi.json", document, "Returns this description.", |it| {
        it.answers::<openapi::answers::Fields>()
    });
    [document].into_iter().chain(openapi::docs_routes()).collect()
}

async fn document() -> Json<OpenApi> {
    Json(api_document())
}

/// Builds the router of all HTTP routes.
pub fn router(state: ServerState) -> Router {
    let routes = all().into_iter().flat_map(|(_, routes)| routes).collect();
    admitted(route::router(routes).with_state(state.clone()), state, None)
}

/// Builds the OpenAPI document of all routes.
pub fn api_document() -> OpenApi {
    openapi::document(all())
}

/// Writes one table of all endpoints and one of each endpoint's parameters, as Markdown.
pub fn api_tables() -> String {
    jackalope_web::tables(&api_document())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openapi::{STATUS_OF_FIELDS, STATUS_OF_SCHEMAS};

    #[test]
    fn every_documented_status_belongs_to_an_existing_field() {
        let document = serde_json::to_value(api_document()).unwrap();
        let schemas = &document["components"]["schemas"];
        for (name, status) in STATUS_OF_SCHEMAS {
            assert_eq!(schemas[name]["x-status"], status, "{name}");
        }
        for (name, fields, status) in STATUS_OF_FIELDS {
            for field in fields {
                let found = &schemas[name]["properties"][field]["x-status"];
                assert_eq!(found, status, "{name}.{field}");
            }
        }
    }

    #[test]
    fn operations_have_names_of_their_own() {
        let document = serde_json::to_value(api_document()).unwrap();
        let mut names = std::collections::HashSet::new();
        for item in document["paths"].as_object().unwrap().values() {
            for operation in item.as_object().unwrap().values() {
                let name = operation["operationId"].as_str().unwrap();
                assert!(names.insert(name.to_owned()), "{name}");
            }
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn check(value: &serde_json::Value, document: &serde_json::Value) {
            match value {
                serde_json::Value::Object(fields) => {
                    if let Some(reference) = fields.get("$ref").and_then(|it| it.as_str()) {
                        let pointer = reference.strip_prefix('#').unwrap();
                        assert!(document.pointer(pointer).is_some(), "{reference}");
                    }
                    fields.values().for_each(|it| check(it, document));
                }
                serde_json::Value::Array(items) => items.iter().for_each(|it| check(it, document)),
                _ => {}
            }
        }
        let document = serde_json::to_value(api_document()).unwrap();
        check(&document, &document);
    }
}
