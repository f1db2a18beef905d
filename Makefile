# Every recipe that CI runs stands here, so that local and CI cannot differ. All of them share the release
# profile; nothing is compiled twice.

CARGO ?= cargo
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
WEIR := $(TARGET_DIR)/release/weir
# Set where a Kafka broker of our own is wanted.
KAFKA := $(filter-out 0,$(WITH_KAFKA))

.PHONY: help up down test check faults overload hammer bench bench-engine bench-gateway bench-step-loop jsonschemabench openapi models smollm2 install kafka kernels gpu build

help: ## What there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort

up: install smollm2 build $(if $(KAFKA),kafka) ## Start everything, print a first answer and how to go on (DETACH=1: return once it serves; WITH_KAFKA=1: records go through a broker; DEVICE=cpu|cuda|sim: what the model runs on)
	@$(WEIR) up $(if $(filter-out 0,$(DETACH)),--detach) $(if $(KAFKA),--with-kafka) $(if $(DEVICE),--device $(DEVICE))

down: ## Stop what `make up DETACH=1` started, and wait for it
	@if [ -x $(WEIR) ]; then $(WEIR) down; else echo "weir: not built, so nothing runs"; fi

test: KAFKA := 1
test: CLIENTS := 1
test: install models kafka build ## All tests
	@deploy/setup/python.sh .cache/venv-tests tests/conformance/requirements.txt
	@deploy/setup/test-node.sh
	$(CARGO) test --release --workspace

check: ## Formatting, lints, tidiness, CUDA kernels, licences
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings
	$(CARGO) test --release -p weir-tests --test tidy
	$(CARGO) check --release --workspace --no-default-features
	@deploy/setup/nvcc.sh >/dev/null
	data-plane/kernels/compile.sh
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny check; \
	else echo "check: cargo-deny is not installed; licences and advisories were not checked"; fi

faults: KAFKA := 1
faults: install models kafka build ## Kill every part under load and hold the clients' receipts against the ledger (10 minutes)
	$(CARGO) run --release -p weir-tests --bin faults

overload: install models build ## Five times a deployment's capacity for two minutes under each overload policy (10 minutes)
	$(CARGO) run --release -p weir-tests --bin overload

hammer: install models build ## Ten clients hammer one tenant's limits, ten thousand leave at any moment; every stretch of time is checked (6 minutes)
	$(CARGO) run --release -p weir-tests --bin hammer

bench: KAFKA := 1
bench: install models kafka build bench-engine ## Every benchmark
	$(CARGO) run --release -p weir-tests --bin bench
	$(CARGO) run --release -p weir-metering --example record_log_bench
	$(CARGO) run --release -p weir-ledger --example ledger_bench
	$(CARGO) run --release -p weir-text --example encode_speed
	$(CARGO) run --release -p weir-text --example mask_bench
	$(CARGO) run --release -p weir-kernels --example matmul_bench
	$(MAKE) bench-step-loop

gpu: smollm2 kernels ## Put together what a machine with a GPU needs to check and measure the CUDA backend, and run it where there is one
	@tests/gpu/bundle.sh

bench-engine: install models ## Aggregate decode beside llama.cpp's batched bench, same machine and file
	tests/bench/engine.sh

bench-gateway: install build ## CPU, latency and memory of a request and a token, beside a bare handler, SGLang's router and LiteLLM (8 minutes)
	@deploy/setup/python.sh .cache/venv-bench tests/bench/requirements.txt --require-hashes
	$(CARGO) run --release -q -p weir-bench

bench-step-loop: install ## The host's share of a step: 256 sequences on a simulated device that takes no time
	$(CARGO) run --release -q -p weir-worker --example step_loop_bench

jsonschemabench: ## Compile, walk and validate every schema of JSONSchemaBench (DIR=its folder, SEED=of the walks)
	@$(if $(DIR),,echo "jsonschemabench: give the folder of its schemas, DIR=…"; exit 1)
	$(CARGO) run --release -q -p weir-text --example jsonschemabench $(or $(SEED),1) '$(DIR)'

kernels: ## Compile the CUDA kernels ahead, and hold what the compiler made of them (no GPU needed)
	@data-plane/kernels/compile.sh

openapi: build ## Write openapi.yaml from what the control plane serves
	@$(WEIR) openapi > openapi.yaml.new && mv openapi.yaml.new openapi.yaml

smollm2:
	@deploy/setup/fetch-models.sh smollm2

models: ## Fetch the pinned model files (checked by SHA-256)
	@deploy/setup/fetch-models.sh all

install: ## Packages that are missing (root or sudo; does nothing when all are here)
	@deploy/setup/install.sh $(if $(KAFKA),kafka) $(if $(CLIENTS),clients)

kafka: install # The jars of the broker that tests and WITH_KAFKA=1 start
	@deploy/setup/kafka.sh

# Where there is a GPU driver the kernels are compiled ahead, too.
build: $(if $(wildcard /dev/nvidiactl),kernels)
	$(CARGO) build --release --workspace --bin weir
