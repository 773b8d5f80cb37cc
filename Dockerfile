# For work on jackalope under Linux, on the CPU: the README's commands, in a container.
#
#   docker build -t jackalope .
#   docker run --rm -it -v "$PWD":/jackalope -w /jackalope --network host jackalope make demo
#
# `--network host` lets ranks and servers be reached as without a container. The build reads no file of
# the repository; sources and target/ are those of the folder that is mounted.
FROM rust:1-trixie
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ python3 python3-pip python3-venv \
       iproute2 openssh-server openssh-client \
    && rm -rf /var/lib/apt/lists/* \
    && rustup component add clippy rustfmt
WORKDIR /jackalope
CMD ["make", "demo"]
