//! Arguments about the server's clients: authentication, TLS, limits and request logs.

use std::path::PathBuf;

use jackalope_server::ServerLimits;

/// Maximum of arguments in MiB: 1 TiB.
const MIB_MAX: u64 = 1 << 20;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EdgeArgs {
    /// API keys that clients must send, separated by commas. Every user of this machine can read the
    /// command line: prefer `--api-key-file` or the variable JACKALOPE_API_KEY.
    #[arg(long, value_delimiter = ',', value_name = "KEYS")]
    pub(crate) api_key: Vec<String>,
    /// File of API keys, one per line; lines that begin with `#` are skipped. Read once, at startup.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// API keys of administrators, who may also list and cancel other clients' requests and load and
    /// unload models, separated by commas. Prefer `--admin-key-file` or the variable JACKALOPE_ADMIN_KEY.
    #[arg(long, value_delimiter = ',', value_name = "KEYS")]
    pub(crate) admin_key: Vec<String>,
    /// File of administrators' API keys, in the format of `--api-key-file`.
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_key_file: Option<PathBuf>,
    /// JSON file of API keys with names and limits (docs/api.md); read again when it changes.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_keys: Option<PathBuf>,
    /// Allow clients on other machines without API keys.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Serve HTTPS with the certificate chain in this PEM file, the server's certificate first; read again
    /// when it changes.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// PEM file of the certificate's private key.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Origins that CORS allows, separated by commas; `*` allows all. Default: none.
    #[arg(long, value_delimiter = ',', value_name = "ORIGINS")]
    pub(crate) cors: Vec<String>,
    /// Also serve LocalAI at this address, over gRPC without TLS; LocalAI's `--external-grpc-backends`
    /// names it (docs/localai.md). Default: off.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) grpc_addr: Option<String>,
    /// Additional values of the `Host` header, separated by commas, that a server without keys on a
    /// loopback address accepts.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) allow_host: Vec<String>,
    /// Maximum size of a request body, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = default_body_mib(),
        value_parser = clap::value_parser!(u64).range(1..=MIB_MAX))]
    pub(crate) max_body: u64,
    /// Maximum number of open generation requests.
    #[arg(long, value_name = "COUNT", default_value_t = default_open_streams(),
        value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) max_open_streams: u32,
    /// File to which one line of JSON is appended for every finished request, without its text.
    #[arg(long, value_name = "FILE")]
    pub(crate) request_log: Option<PathBuf>,
    /// URL of a trace collector (OTLP over HTTP). Default: OTEL_EXPORTER_OTLP_ENDPOINT, else no traces.
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,
}

fn default_body_mib() -> u64 {
    (ServerLimits::default().body_bytes >> 20) as u64
}

fn default_open_streams() -> u32 {
    ServerLimits::default().open_streams as u32
}
