//! A route: its method, path and handler, and its entry in the OpenAPI document.

use std::collections::BTreeMap;

use axum::Router;
use axum::extract::Request;
use axum::handler::Handler;
use axum::routing::{self, MethodRouter};
use jackalope_serving::error::ApiError;
use utoipa::openapi::path::{
    HttpMethod, Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn,
};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::{Content, KnownFormat, Ref, RefOr, Required, Response, Schema, SchemaFormat};
use utoipa::{IntoParams, ToSchema};

use crate::openapi::answers::ServerSentEvent;
use crate::state::ServerState;
use crate::wire::string;

/// Content type of JSON.
const JSON: &str = "application/json";

/// A method of a path, with its handler.
pub(crate) struct Route {
    pub(crate) method: HttpMethod,
    /// The path as the router reads it: `{*name}` also matches slashes.
    path: &'static str,
    handler: MethodRouter<ServerState>,
    summary: &'static str,
    /// Describes the route in the OpenAPI document; absent for a route that only explains why it is
    /// not supported.
    describe: Option<Describe>,
}

/// Completes the entry of a route in the OpenAPI document.
type Describe = fn(Entry) -> Entry;

macro_rules! route_of {
    ($($(#[$doc:meta])* $name:ident = $method:ident),+) => {
        $(
            $(#[$doc])*
            pub(crate) fn $name<H: Handler<T, ServerState>, T: 'static>(
                path: &'static str,
                handler: H,
                summary: &'static str,
                describe: Describe,
            ) -> Route {
                let (method, handler) = (HttpMethod::$method, routing::$name(handler));
                Route { method, path, handler, summary, describe: Some(describe) }
            }
        )+
    };
}

route_of! {
    /// Creates a documented `GET` route.
    get = Get,
    /// Creates a documented `POST` route.
    post = Post,
    /// Creates a documented `DELETE` route.
    delete = Delete
}

/// A handler for `POST` that refuses, and is not in the OpenAPI document.
pub(crate) fn refused_post<H: Handler<T, ServerState>, T: 'static>(
    path: &'static str,
    handler: H,
) -> Route {
    let handler = routing::post(handler);
    Route { method: HttpMethod::Post, path, handler, summary: "", describe: None }
}

impl Route {
    /// The path as the OpenAPI document has it.
    pub(crate) fn documented_path(&self) -> String {
        self.path.replace("{*", "{")
    }

    /// The route's entry in the OpenAPI document, unless it has none.
    pub(crate) fn entry(&self) -> Option<Entry> {
        let operation = OperationBuilder::new().summary(Some(self.summary)).build();
        Some((self.describe?)(Entry { operation, schemas: Vec::new() }))
    }

    fn allowed(&self) -> &'static str {
        match (&self.describe, &self.method) {
            (None, _) => "",
            (Some(_), HttpMethod::Post) => "POST",
            (Some(_), HttpMethod::Delete) => "DELETE",
            (Some(_), _) => "GET, HEAD",
        }
    }
}

/// Builds the router of these routes. Other methods of their paths are answered with an error that
/// names the allowed ones.
pub(crate) fn router(routes: Vec<Route>) -> Router<ServerState> {
    let mut paths: BTreeMap<&str, (MethodRouter<ServerState>, Vec<&str>)> = BTreeMap::new();
    for route in routes {
        let allowed = route.allowed();
        let (methods, all) = paths.remove(route.path).unwrap_or_default();
        let all = all.into_iter().chain(Some(allowed).filter(|it| !it.is_empty())).collect();
        paths.insert(route.path, (methods.merge(route.handler), all));
    }
    paths.into_iter().fold(Router::new(), |router, (path, (methods, allowed))| {
        let allowed = allowed.join(", ");
        router.route(path, methods.fallback(|request| wrong_method(request, allowed)))
    })
}

async fn wrong_method(request: Request, allowed: String) -> ApiError {
    ApiError::WrongMethod {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        allowed,
    }
}

/// An entry of the OpenAPI document.
pub(crate) struct Entry {
    pub(crate) operation: Operation,
    /// The schemas that the entry refers to, with their names.
    pub(crate) schemas: Vec<(String, RefOr<Schema>)>,
}

impl Entry {
    /// Describes the request's body.
    pub(crate) fn takes<T: ToSchema>(mut self) -> Entry {
        let content = self.content::<T>();
        let body = RequestBodyBuilder::new().content(JSON, content).required(Some(Required::True));
        self.operation.request_body = Some(body.build().into());
        self
    }

    /// Describes the parameters in the query string.
    pub(crate) fn query<T: IntoParams>(self) -> Entry {
        self.parameters(T::into_params(|| Some(ParameterIn::Query)))
    }

    /// Describes a parameter in the path.
    pub(crate) fn path(self, name: &str, meaning: &str) -> Entry {
        self.parameter(name, meaning, ParameterIn::Path)
    }

    /// Describes an optional header of the request.
    pub(crate) fn header(self, name: &str, meaning: &str) -> Entry {
        self.parameter(name, meaning, ParameterIn::Header)
    }

    /// Describes the answer.
    pub(crate) fn answers<T: ToSchema>(self) -> Entry {
        self.status::<T>("200", "The answer.")
    }

    /// Describes the answer with this status.
    pub(crate) fn status<T: ToSchema>(mut self, status: &str, meaning: &str) -> Entry {
        let content = self.content::<T>();
        self.response(status, meaning).content.insert(JSON.to_owned(), content.into());
        self
    }

    /// Describes a status without content.
    pub(crate) fn empty(mut self, status: &str, meaning: &str) -> Entry {
        self.response(status, meaning);
        self
    }

    /// Adds server-sent events to the forms of the answer.
    pub(crate) fn events(mut self) -> Entry {
        let content = self.content::<ServerSentEvent>();
        self.content_of_type("text/event-stream", content)
    }

    /// Adds text of this content type to the forms of the answer.
    pub(crate) fn text(self, content_type: &str) -> Entry {
        self.content_of_type(content_type, Content::new(Some(string())))
    }

    /// Adds data of this content type to the forms of the answer.
    pub(crate) fn binary(self, content_type: &str) -> Entry {
        let binary = SchemaFormat::KnownFormat(KnownFormat::Binary);
        self.content_of_type(content_type, Content::new(Some(string().format(Some(binary)))))
    }

    fn content_of_type(mut self, content_type: &str, content: Content) -> Entry {
        let ok = self.response("200", "The answer.");
        ok.content.insert(content_type.to_owned(), content.into());
        self
    }

    fn parameter(self, name: &str, meaning: &str, place: ParameterIn) -> Entry {
        let required = if place == ParameterIn::Path { Required::True } else { Required::False };
        let parameter = ParameterBuilder::new().name(name).parameter_in(place).required(required);
        let parameter = parameter.description(Some(meaning)).schema(Some(string()));
        self.parameters(vec![parameter.build()])
    }

    fn parameters(mut self, parameters: Vec<Parameter>) -> Entry {
        self.operation
            .parameters
            .get_or_insert_default()
            .extend(parameters.into_iter().map(Into::into));
        self
    }

    fn response(&mut self, status: &str, meaning: &str) -> &mut Response {
        let responses = &mut self.operation.responses.responses;
        let response = responses.entry(status.to_owned());
        let response = response.or_insert_with(|| Response::new(meaning).into());
        match response {
            RefOr::T(response) => response,
            RefOr::Ref(_) => unreachable!("responses are written in place"),
        }
    }

    /// A reference to the schema of a type, which is added to the document.
    fn content<T: ToSchema>(&mut self) -> Content {
        let name = T::name().into_owned();
        let reference = Ref::from_schema_name(&name);
        self.schemas.push((name, T::schema()));
        T::schemas(&mut self.schemas);
        Content::new(Some(reference))
    }
}
