# An image that serves models on the CPU, from an archive that `cargo xtask dist` has made:
#
#   cargo xtask dist
#   docker build -t jackalope .
#   docker run --rm jackalope demo
#   docker run --rm --network host -v ~/.cache/huggingface:/models/huggingface:ro \
#     -e HF_HOME=/models/huggingface jackalope serve --model ORG/NAME
#
# `--network host` lets ranks of other machines and clients be reached as without a container.
FROM debian:bookworm-slim AS base
RUN apt-get update \
    && apt-get install -y --no-install-recommends libstdc++6 openssh-client ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 jackalope

FROM base AS installed
COPY packaging/install.sh target/dist/SHA256SUMS target/dist/jackalope-*-linux-*.tar.gz /tmp/release/
# The installation makes a key of its own, which must not be one that all containers share.
RUN sh /tmp/release/install.sh --from /tmp/release --prefix /opt/jackalope && rm /opt/jackalope/identity

# The image has what was installed, without the archive.
FROM base
COPY --from=installed /opt/jackalope /opt/jackalope
ENV PATH=/opt/jackalope/current/bin:$PATH
USER jackalope
ENTRYPOINT ["jackalope"]
CMD ["--help"]
