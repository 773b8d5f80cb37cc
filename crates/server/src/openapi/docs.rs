//! `/docs`: Swagger UI, which needs no access to other servers.

use axum::extract::Path;
use axum::response::{Redirect, Response};
use jackalope_serving::error::ApiError;

use crate::route::{Route, get};

/// The routes of this module.
pub(crate) fn routes() -> Vec<Route> {
    vec![
        get("/docs", docs_root, "Redirects to `/docs/`.", |it| {
            it.text("text/html").empty("307", "`/docs/`")
        }),
        get("/docs/", docs, "Returns the web page that shows this description.", |it| {
            it.text("text/html")
        }),
        get("/docs/{*path}", docs, "Returns a file of that web page.", |it| {
            let it = it.path("path", "Name of the file.").text("text/html").text("text/css");
            it.text("text/javascript").text("application/javascript").binary("image/png")
        }),
    ]
}

async fn docs_root() -> Redirect {
    Redirect::temporary("/docs/")
}

async fn docs(path: Option<Path<String>>) -> Result<Response, ApiError> {
    let path = path.map_or(String::new(), |Path(path)| path);
    jackalope_web::documentation(&path)
        .ok_or_else(|| ApiError::UnknownPath { path: format!("/docs/{path}") })
}
