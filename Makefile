# `make help` lists the targets. Each is one command of `jackalope`, which takes the same settings from
# the environment: MODEL_DIR, HOSTFILE, HTTP_PORT, … (`.env.example`). For work on jackalope itself see
# CONTRIBUTING.md.

JACKALOPE ?= $(firstword $(wildcard $(HOME)/.jackalope/current/bin/jackalope target/release/jackalope) jackalope)

HOSTFILE ?= $(wildcard hostfiles/hosts-2node.json)
ON = $(if $(HOSTFILE),--hosts $(HOSTFILE))
LOCAL_MODEL = $(or $(MODEL_DIR),$(error set MODEL_DIR to the model's directory))
PROFILE = --profile jaccl-cluster

# RDMA_SIZES counts float32, of four bytes each.
comma := ,
RDMA_ROUNDS ?= 20
RDMA_SIZES ?= 1024,65536,1048576,16777216
RDMA_MAX_MB ?= 256
RDMA_BYTES = $(shell for n in $(subst $(comma), ,$(RDMA_SIZES)); do b=$$((n * 4)); [ $$b -le $$(($(RDMA_MAX_MB) << 20)) ] && printf '%s,' $$b; done | sed 's/,$$//')
EVERY_ROUND = $(if $(filter 1 true yes on,$(RDMA_VERBOSE)),--every-round)
LINK = $(JACKALOPE) link $(ON) --rounds $(RDMA_ROUNDS) --sizes $(RDMA_BYTES) $(EVERY_ROUND)

MACMON_INTERVAL ?= 1000
HW_SECONDS = $(shell echo $$(( ($(MACMON_INTERVAL) + 999) / 1000 )))

BENCH_TOKENS ?= 256
BENCH_PROMPT_TOKENS ?= 512
BENCH_RUNS ?= 3
BENCH_WARMUP ?= 1

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z0-9-]*\): ##.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## Print this list.
	@awk '/^#@ /{print "\n" substr($$0, 4)} /^[a-z0-9-]+: ##/{i = index($$0, ": ## "); printf "  %-16s %s\n", substr($$0, 1, i - 1), substr($$0, i + 5)}' $(firstword $(MAKEFILE_LIST))

#@ Machines
setup: ## Check this machine, compare sums computed by two ranks, and store its fingerprint.
	$(JACKALOPE) doctor
	$(JACKALOPE) link --rounds 5 --sizes 4096 --backend ring
	$(JACKALOPE) fingerprint --save .
bootstrap: ## Install jackalope on another machine: REMOTE=host.
	$(JACKALOPE) bootstrap $(or $(REMOTE),$(error set REMOTE to a name for ssh))
verify: ## Check every machine of HOSTFILE and the links between them.
	$(JACKALOPE) doctor $(ON)
cluster-info: ## Compare the machines side by side.
	$(JACKALOPE) cluster-info $(ON)
sync: ## Install this version on every machine of HOSTFILE.
	$(JACKALOPE) sync $(or $(ON),$(error set HOSTFILE))
version: ## Print the versions of jackalope and MLX, the system and the chip.
	$(JACKALOPE) fingerprint
fingerprint: ## Print this machine's fingerprint as JSON, and write it to .node_fingerprint_HOSTNAME.json.
	$(JACKALOPE) fingerprint --json --save .
mem: ## Show the memory of each machine of HOSTFILE.
	$(JACKALOPE) cluster-info $(ON)
hw-snap: ## Show memory, load and temperature state of each machine of HOSTFILE.
	$(JACKALOPE) cluster-info $(ON) --hardware
hw-monitor: ## Repeat hw-snap every MACMON_INTERVAL (1000) milliseconds, rounded up to seconds.
	$(JACKALOPE) cluster-info $(ON) --hardware --every $(HW_SECONDS)
autoconfig: ## Detect the cables and print a hostfile: HOSTS=mac1,mac2.
	$(JACKALOPE) autoconfig --hosts $(or $(HOSTS),$(error set HOSTS to names for ssh, separated by commas))

#@ Links
rdma-quick: ## Run 5 rounds with small payloads.
	$(JACKALOPE) link $(ON) --rounds 5 --sizes 4096,262144
rdma-test: ## Test correctness, latency and bandwidth: RDMA_ROUNDS (20), RDMA_SIZES; RDMA_VERBOSE=1 prints each round.
	$(LINK)
rdma-verbose: ## Run rdma-test and print the time of each round.
	$(LINK)
rdma-verbose: override RDMA_VERBOSE = 1
rdma-stress: ## Run 100 rounds with large payloads and check each.
	$(JACKALOPE) link $(ON) --rounds 100 --checksums --sizes 4194304,67108864,268435456
rdma-diag: ## Diagnose the machines' RDMA devices, with causes and remedies.
	$(JACKALOPE) doctor $(ON)

#@ Server
server: ## Serve MODEL_DIR in the foreground.
	$(JACKALOPE) serve $(PROFILE)
server-bg: ## Serve MODEL_DIR in the background and wait until it is ready.
	$(JACKALOPE) start $(PROFILE)
server-stop: ## Stop the server and its ranks.
	$(JACKALOPE) stop
server-restart: ## Restart the server; ranks keep their weights.
	$(JACKALOPE) restart
resume: ## Restore the addresses of cables after a reboot, and start the last server.
	$(JACKALOPE) resume
health: ## Query the server's health.
	$(JACKALOPE) health
metrics: ## Query the server's counters and the memory of its ranks.
	$(JACKALOPE) metrics
models: ## List the models that the server serves.
	$(JACKALOPE) served
chat-test: ## Request one short answer from the server.
	$(JACKALOPE) test
queue: ## Query the length of the server's queue.
	$(JACKALOPE) queue
bench: ## Measure MODEL_DIR: BENCH_TOKENS (256), BENCH_WARMUP (1), BENCH_RUNS (3).
	$(JACKALOPE) bench --model $(LOCAL_MODEL) $(ON) --gen-tokens $(BENCH_TOKENS) --prompt-tokens $(BENCH_PROMPT_TOKENS) --concurrency 1 --runs $(BENCH_RUNS) --warmup $(BENCH_WARMUP)
config: ## Print each setting and its source.
	$(JACKALOPE) config $(PROFILE)

#@ Models
download: ## Download a model, and copy it to every machine of HOSTFILE: MODEL=org/name.
	$(JACKALOPE) pull $(or $(MODEL),$(error set MODEL to ORG/NAME)) $(ON)
models-local: ## List the models on this machine.
	$(JACKALOPE) models ls
models-check: ## Check MODEL_DIR on every machine of HOSTFILE.
	$(JACKALOPE) doctor $(ON) --model $(LOCAL_MODEL)
models-sync: ## Copy MODEL to every machine of HOSTFILE.
	$(JACKALOPE) models sync $(or $(MODEL),$(error set MODEL to ORG/NAME)) $(or $(ON),$(error set HOSTFILE))
purge-models: ## Remove a model from this machine, after confirmation: MODEL=org/name.
	$(JACKALOPE) models rm $(or $(MODEL),$(error set MODEL to ORG/NAME))

#@ Watching
status: ## Show the state of the server, its ranks and its machines.
	$(JACKALOPE) status
monitor: ## Repeat status every MONITOR_INTERVAL (5) seconds.
	$(JACKALOPE) monitor
logs: ## Follow the server's log.
	$(JACKALOPE) logs --follow

support: ## Collect diagnostics for a bug report in a folder: findings of doctor, logs, last errors.
	$(JACKALOPE) support $(ON)

#@ Ending
kill-all: ## Stop the server and all agents of HOSTFILE's machines.
	$(JACKALOPE) kill-all $(ON)
clean: ## Remove jackalope from this machine, after confirmation; models are kept.
	$(JACKALOPE) uninstall 127.0.0.1
clean-all: ## Remove jackalope from every other machine of HOSTFILE, after confirmation; models are kept.
	$(JACKALOPE) uninstall $(or $(ON),$(error set HOSTFILE))

#@ Work on jackalope
demo: ## Run the demonstration of the README.
	@cargo xtask demo
test: ## Run all checks of CI.
	@cargo xtask ci
lint: ## Check formatting and lints.
	cargo fmt --all --check && cargo clippy --workspace --all-targets -- -D warnings
loc: ## Count lines of code, tests and comments by crate.
	@cargo xtask loc
docs: ## Generate the pages that are derived from the program.
	cargo run -q -p jackalope-cli -- commands-page > docs/commands.md && cargo run -q -p jackalope-cli -- config --example > .env.example
	cargo run -q -p jackalope-cli -- openapi > docs/openapi.json
	cargo run -q -p jackalope-cli -- openapi --page docs/api.md > target/api.md && mv target/api.md docs/api.md
