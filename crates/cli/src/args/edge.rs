//! How the server meets its clients: who may ask, from where, for how much, and what is told of it.

use std::path::PathBuf;

use jackalope_server::ServerLimits;

/// Most of anything that is counted in mebibytes: a tebibyte.
const MIB_MAX: u64 = 1 << 20;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EdgeArgs {
    /// Keys that clients must present, separated by commas. Every user of this machine can read a
    /// command line: prefer `--api-key-file` or the variable JACKALOPE_API_KEY.
    #[arg(long, value_delimiter = ',', value_name = "KEYS")]
    pub(crate) api_key: Vec<String>,
    /// File with such keys, one per line; lines that begin with `#` are skipped. Read once, at the start.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Keys for administrators, who may also cancel requests and see the last ones, separated by commas.
    /// Prefer `--admin-key-file` or the variable JACKALOPE_ADMIN_KEY.
    #[arg(long, value_delimiter = ',', value_name = "KEYS")]
    pub(crate) admin_key: Vec<String>,
    /// File with administrators' keys, as `--api-key-file`.
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_key_file: Option<PathBuf>,
    /// File of keys with names and limits, as docs/api.md describes; read again when it changes.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_keys: Option<PathBuf>,
    /// Listen beyond this machine without keys.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Speak HTTPS with the certificates of this PEM file, the server's first; read again when it changes.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate, a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Origins whose web pages may read answers, separated by commas; `*` for all. Default: none.
    #[arg(long, value_delimiter = ',', value_name = "ORIGINS")]
    pub(crate) cors: Vec<String>,
    /// Answer LocalAI too, over gRPC without TLS: what its `--external-grpc-backends` names
    /// (docs/localai.md). Default: not.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) grpc_addr: Option<String>,
    /// Further names that a server for this machine alone answers to, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) allow_host: Vec<String>,
    /// Longest body of a request.
    #[arg(long, value_name = "MIB", default_value_t = default_body_mib(),
        value_parser = clap::value_parser!(u64).range(1..=MIB_MAX))]
    pub(crate) max_body: u64,
    /// Generation requests that may be open at once.
    #[arg(long, value_name = "COUNT", default_value_t = default_open_streams(),
        value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) max_open_streams: u32,
    /// File that gets a line of JSON for every request that ended, without its text.
    #[arg(long, value_name = "FILE")]
    pub(crate) request_log: Option<PathBuf>,
    /// Collector of traces, OTLP over HTTP. Default: OTEL_EXPORTER_OTLP_ENDPOINT, else none.
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,
}

fn default_body_mib() -> u64 {
    (ServerLimits::default().body_bytes >> 20) as u64
}

fn default_open_streams() -> u32 {
    ServerLimits::default().open_streams as u32
}
