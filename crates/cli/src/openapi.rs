//! `jackalope openapi`: prints the description of the HTTP API, and the page generated from it.

use anyhow::{Context, ensure};
use jackalope_console::output;
use jackalope_server::{api_document, api_tables};

use crate::args::OpenapiArgs;

/// Line of a page after which everything is generated.
const MARK: &str = "<!-- What follows is made by `jackalope openapi --page docs/api.md`. -->\n";

/// Maximum size of a page.
const PAGE_BYTES_MAX: u64 = 4 << 20;

pub(crate) fn run(args: &OpenapiArgs) -> anyhow::Result<()> {
    let Some(path) = &args.page else {
        let document = serde_json::to_string_pretty(&api_document())?;
        return Ok(output::line(document)?);
    };
    let failed = || format!("reading {}", path.display());
    let len_bytes = std::fs::metadata(path).with_context(failed)?.len();
    ensure!(len_bytes <= PAGE_BYTES_MAX, "{} is no page: {len_bytes} bytes", path.display());
    let page = std::fs::read_to_string(path).with_context(failed)?;
    let (written, _) = page
        .split_once(MARK)
        .with_context(|| format!("{} has no line {MARK:?}", path.display()))?;
    Ok(output::piece(format!("{written}{MARK}\n{}", api_tables()))?)
}
