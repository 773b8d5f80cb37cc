//! Options of other servers that have no meaning here, and what to use instead.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Options of vllm-mlx's `serve`. Those with a meaning here are aliases of ours.
const VLLM_MLX: &[(&str, &str)] = &[
    ("--rate-limit", "keys have limits: `--api-keys FILE` (docs/api.md)"),
    ("--expert-parallel", "experts are divided with everything else: `--split tensor`"),
    ("--ep-kernel-backend", "experts are divided with everything else: `--split tensor`"),
    ("--ep-capacity-factor", "no token is dropped here, so there is nothing to set"),
    ("--speculative-method", "there is no speculative decoding here"),
    ("--num-speculative-tokens", "there is no speculative decoding here"),
    ("--draft-model", "there is no speculative decoding here"),
    ("--mtp-model", "there is no speculative decoding here"),
    ("--spec-decode-auto-disable-threshold", "there is no speculative decoding here"),
    ("--spec-decode-auto-disable-window", "there is no speculative decoding here"),
    ("--prefill-batch-size", "`--step-tokens` bounds what a step computes"),
    ("--completion-batch-size", "`--running-max` bounds the requests computed side by side"),
    ("--stream-interval", "every token is sent when it is there"),
    ("--prefix-cache-size", "`--kv-mib` bounds the memory of prefixes"),
    ("--cache-memory-percent", "`--kv-mib` bounds the memory of keys and values"),
    ("--kv-cache-quantization", "keys and values are not quantised here"),
    ("--kv-cache-quantization-bits", "keys and values are not quantised here"),
    ("--kv-cache-quantization-group-size", "keys and values are not quantised here"),
    ("--paged-cache-block-size", "the size of cache blocks is fixed"),
    ("--max-cache-blocks", "`--kv-mib` bounds the memory of keys and values"),
    ("--mcp-config", "tools are called by the client: send `tools` with a request"),
    ("--embedding-model", "every model embeds: add it with another `--model`"),
];

/// Returns a hint about what to use instead of the unknown option in an error.
pub(crate) fn hint(err: &clap::Error) -> Option<&'static str> {
    if err.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(typed)) = err.get(ContextKind::InvalidArg) else { return None };
    let name = typed.split_once('=').map_or(typed.as_str(), |(name, _)| name);
    VLLM_MLX.iter().find(|(option, _)| *option == name).map(|(_, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    /// All options of vllm-mlx's `serve`, as its users write them.
    const OPTIONS: &str = "--model=m --host=0.0.0.0 --port=8000 --continuous-batching --distributed \
        --dist-backend=ring --dist-num-ranks=2 --dist-hostfile=h.json --dist-hosts=a,b --dist-env=A=b --expert-parallel \
        --ep-kernel-backend=auto --ep-capacity-factor=1.25 --speculative-method=ngram \
        --num-speculative-tokens=3 --draft-model=d --mtp-model=m --spec-decode-auto-disable-threshold=0.4 \
        --spec-decode-auto-disable-window=50 --max-num-seqs=256 --prefill-batch-size=8 \
        --completion-batch-size=32 --stream-interval=1 --chunked-prefill-tokens=512 --no-prefix-cache \
        --prefix-cache-size=100 --cache-memory-mb=512 --cache-memory-percent=.20 --kv-cache-quantization \
        --kv-cache-quantization-bits=8 --kv-cache-quantization-group-size=64 --use-paged-cache \
        --paged-cache-block-size=64 --max-cache-blocks=1000 --max-tokens=32768 --api-key=k --rate-limit=0 \
        --timeout=300 --enable-auto-tool-choice --tool-call-parser=hermes --reasoning-parser=qwen3 \
        --mcp-config=f --embedding-model=e";

    #[test]
    fn every_option_of_vllm_mlx_is_taken_or_refused_with_a_hint() {
        for option in OPTIONS.split_whitespace() {
            let model = (!option.starts_with("--model=")).then_some("--model=m");
            let words = ["jackalope", "serve", option].into_iter().chain(model);
            if let Err(err) = Args::try_parse_from(words) {
                assert!(hint(&err).is_some(), "{option}: {err}");
            }
        }
        let err = Args::try_parse_from(["jackalope", "serve", "--model=m", "--foo"]).unwrap_err();
        assert_eq!(hint(&err), None);
    }

    #[test]
    fn options_of_vllm_mlx_mean_ours() {
        let words = "jackalope serve --model m --max-num-seqs 8 --max-tokens 99 --timeout 30 \
            --tool-call-parser hermes --enable-auto-tool-choice --continuous-batching --use-paged-cache \
            --chunked-prefill-tokens 128 --cache-memory-mb 64 --dist-num-ranks 2";
        let parsed = Args::try_parse_from(words.split_whitespace()).unwrap();
        let Command::Serve(args) = parsed.command else { panic!("{parsed:?}") };
        assert_eq!((args.ranks.running_max, args.ranks.step_tokens), (8, 128));
        assert_eq!((args.ranks.kv_mib, args.ranks.ranks), (Some(64), 2));
        assert_eq!((args.default_max_tokens, args.tool_parser.as_str()), (Some(99), "hermes"));
        assert_eq!(args.request_timeout, Some(std::time::Duration::from_secs(30)));
    }
}
