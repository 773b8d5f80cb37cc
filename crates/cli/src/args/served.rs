//! Arguments that name the models of a server.

use std::path::PathBuf;
use std::time::Duration;

use clap::ArgGroup;

pub(crate) use jackalope_deploy::served_models::parse_time;

use super::plan::{MemoryArg, parse_memory};

/// The models that a server offers, and when they are loaded.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(group(ArgGroup::new("offered").required(true).multiple(true).args(["model", "models_dir", "models_config"])))]
pub(crate) struct ServedModelsArgs {
    /// Directory of a checkpoint, or ORG/NAME of a model on this machine (see `models ls`). May be
    /// given several times.
    #[arg(long, value_name = "DIR|ORG/NAME")]
    pub(crate) model: Vec<PathBuf>,
    /// Name of the first `--model` in the API. Default: ORG/NAME, or the directory's name.
    #[arg(long, value_name = "NAME", requires = "model")]
    pub(crate) model_id: Option<String>,
    /// Folder of models to offer: directories NAME or ORG/NAME, or a Hugging Face cache.
    #[arg(long, value_name = "DIR")]
    pub(crate) models_dir: Option<PathBuf>,
    /// JSON file that names models to offer, with settings for each (docs/api.md).
    #[arg(long, value_name = "FILE")]
    pub(crate) models_config: Option<PathBuf>,
    /// Additional names of models: `NAME=MODEL`, separated by commas. One `*` in a name stands for any
    /// characters: `gpt-*=MODEL`.
    #[arg(long, value_delimiter = ',', value_name = "NAME=MODEL", value_parser = parse_alias)]
    pub(crate) alias: Vec<AliasArg>,
    /// Refuse the names of Anthropic's models (`claude-…`) on Anthropic's endpoints. Default: they stand for
    /// the default model, because agents have them built in.
    #[arg(long)]
    pub(crate) strict_model_names: bool,
    /// Models to load at startup and never unload, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "MODELS")]
    pub(crate) pin: Vec<String>,
    /// Model to load at startup, and to use for requests that name no model or `default`. Default: the
    /// first one.
    #[arg(long, value_name = "MODEL")]
    pub(crate) default: Option<String>,
    /// Whether a request for a model that is not loaded loads it. Default: yes if there are several
    /// models or a `--models-dir`, else no.
    #[arg(long, value_name = "YES|NO", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) load_on_demand: Option<bool>,
    /// Maximum time that a request waits for its model to load, e.g. `90` (seconds), `90s` or `2m`.
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = parse_time)]
    pub(crate) load_wait: Duration,
    /// Unload models that have had no request for this time, e.g. `10m` or `2h`. Default: never.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) idle_unload: Option<Duration>,
    /// Memory for loaded models, e.g. `mac1=48GiB,mac2=20GiB`, or one size for every machine that is not
    /// named. Default: the memory that is free at startup, if there are several models; else no budget.
    #[arg(long, value_delimiter = ',', value_name = "NAME=SIZE", value_parser = parse_memory)]
    pub(crate) memory_budget: Vec<MemoryArg>,
}

/// An additional name of a model.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct AliasArg {
    pub(crate) alias: String,
    /// The model's id.
    pub(crate) model: String,
}

fn parse_alias(text: &str) -> Result<AliasArg, String> {
    match text.split_once('=') {
        Some((alias, model)) if !alias.trim().is_empty() && !model.trim().is_empty() => {
            Ok(AliasArg { alias: alias.trim().to_owned(), model: model.trim().to_owned() })
        }
        _ => Err("expected NAME=MODEL".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_aliases_are_understood() {
        for (text, millis) in
            [("90", 90_000), ("90s", 90_000), ("1.5m", 90_000), ("250ms", 250), ("2h", 7_200_000)]
        {
            assert_eq!(parse_time(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "m", "-1", "ten", "1y", "inf", "NaN"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
        let alias = AliasArg { alias: "gpt-4".to_owned(), model: "org/x".to_owned() };
        assert_eq!(parse_alias("gpt-4=org/x"), Ok(alias));
        assert!(parse_alias("gpt-4").is_err() && parse_alias("=x").is_err());
    }
}
