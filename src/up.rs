//! `weir up`: everything on this machine in one process, beside a private Postgres, with a first tenant that can ask
//! at once.
//!
//! The steps are in [`boot`]; what a first start makes is in [`first_run`]. Everything it keeps lies in `.weir` of
//! the current folder, but for Postgres' data when one is root ([`postgres`]).

mod admin;
mod components;
mod detach;
mod dev_env;
mod first_answer;
mod first_run;
mod kafka;
mod keeper;
pub(crate) mod lock;
mod postgres;
mod stack;
mod state_dir;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use weir_schemas::kafka::RawKafka;
use weir_worker::Device;

use crate::logging;
use crate::process::{Process, block_on};
use crate::screen::say;
use admin::Admin;
use components::Components;
use dev_env::DevEnv;
pub(crate) use kafka::KafkaNode;
use keeper::Keeper;
use lock::{Claim, Occupant, RunLock};
use postgres::Origin;
pub(crate) use postgres::Postgres;
use stack::Stack;
pub(crate) use state_dir::StateDir;

/// Where `deploy/setup/fetch-models.sh` puts the model.
const MODEL_FILE: &str = ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf";
/// Loading repacks the weights; a machine that needs longer than this will not serve.
const READY_TIMEOUT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Go on in the background, and return once it serves.
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    choices: Choices,
    /// Set by --detach for the process in the background.
    #[arg(long, hide = true)]
    in_background: bool,
}

/// What the stack is made of.
#[derive(Debug, Clone, Copy, Args)]
struct Choices {
    /// Records go through a Kafka broker of our own.
    #[arg(long)]
    with_kafka: bool,
    /// What the model runs on: auto, cpu, cuda, or sim (answers are noise).
    #[arg(long, default_value_t)]
    device: Device,
}

pub(crate) fn run(args: &UpArgs) -> anyhow::Result<()> {
    let state = StateDir::here()?;
    state.create()?;
    if args.detach {
        return detach::run(&state, args.choices);
    }
    if args.in_background {
        nix::unistd::setsid().context("cannot leave the terminal's session")?;
    }
    match RunLock::claim(&state)? {
        Claim::Held(lock) => serve(&state, args.choices, lock),
        Claim::Taken(occupant) => {
            say(&describe(occupant));
            Ok(())
        }
    }
}

fn describe(occupant: Option<Occupant>) -> String {
    match occupant {
        Some(Occupant { pid, base_url: Some(url) }) => {
            format!("weir already runs in this checkout (process {pid}): {url}\nStop it with: make down")
        }
        Some(Occupant { pid, base_url: None }) => {
            format!("weir is being started in this checkout already (process {pid}). Stop it with: make down")
        }
        None => "weir is being started in this checkout already. Stop it with: make down".to_owned(),
    }
}

fn serve(state: &StateDir, choices: Choices, mut lock: RunLock) -> anyhow::Result<()> {
    logging::install_for_up(&state.path("log/weir.log"))?;
    let model = std::env::current_dir()?.join(MODEL_FILE);
    if !model.exists() {
        bail!("{MODEL_FILE} is missing; fetch it with: make models");
    }
    let outcome = block_on(async |process| run_all(state, choices, model, process, &mut lock).await);
    // The lock is given up last: who finds it free finds nothing running.
    drop(lock);
    outcome
}

/// Postgres around the components: started first, stopped last.
async fn run_all(
    state: &StateDir,
    choices: Choices,
    model: PathBuf,
    process: Process,
    lock: &mut RunLock,
) -> anyhow::Result<()> {
    say("weir: starting Postgres");
    let place = state.clone();
    // Not interruptible: a Postgres that is half started could not be stopped.
    let (postgres, origin) = tokio::task::spawn_blocking(move || Postgres::start(&place)).await??;
    say(match origin {
        Origin::Created => "weir: Postgres runs, with a new database",
        Origin::Started => "weir: Postgres runs; its data was here",
        Origin::Adopted => "weir: Postgres was running already; taking it over",
    });
    let url = postgres.url();
    let (mut keeper, cancel) = (Keeper::of(postgres)?, process.cancel.clone());
    let run = run_with_kafka(state, choices, &url, model, process, lock);
    let served = keeper.beside(run, &cancel).await;
    say("weir: stopping Postgres");
    let stopped = keeper.stop().await;
    if served.is_ok() && stopped.is_ok() {
        say("weir: stopped");
    }
    served.and(stopped)
}

/// The broker around the components, where one is wanted.
async fn run_with_kafka(
    state: &StateDir,
    choices: Choices,
    database_url: &str,
    model: PathBuf,
    process: Process,
    lock: &mut RunLock,
) -> anyhow::Result<()> {
    let place = state.clone();
    if !choices.with_kafka {
        // One that a killed run left would otherwise run on for nobody.
        tokio::task::spawn_blocking(move || match KafkaNode::left_over(&place)? {
            Some(mut kafka) => kafka.stop(),
            None => Ok(()),
        })
        .await??;
        return run_components(state, database_url, choices.device, None, model, process, lock).await;
    }
    say("weir: starting Kafka");
    let (kafka, origin) = tokio::task::spawn_blocking(move || KafkaNode::start(&place)).await??;
    let address = kafka.address();
    say(&match origin {
        Origin::Created => format!("weir: Kafka runs at {address}, with nothing in it yet"),
        Origin::Started => format!("weir: Kafka runs at {address}; its data was here"),
        Origin::Adopted => format!("weir: Kafka was running already at {address}; taking it over"),
    });
    let settings = Some(kafka.settings());
    let (mut keeper, cancel) = (Keeper::of(kafka)?, process.cancel.clone());
    let run = run_components(state, database_url, choices.device, settings, model, process, lock);
    let served = keeper.beside(run, &cancel).await;
    say("weir: stopping Kafka");
    let stopped = keeper.stop().await;
    served.and(stopped)
}

/// Runs until the stop signal, a failure, or the end of a component; then stops what runs, in order.
async fn run_components(
    state: &StateDir,
    database_url: &str,
    device: Device,
    kafka: Option<RawKafka>,
    model: PathBuf,
    mut process: Process,
    lock: &mut RunLock,
) -> anyhow::Result<()> {
    let mut stack = Stack::default();
    let cancel = process.cancel.clone();
    let booted = tokio::select! {
        booted = boot(state, database_url, device, kafka, model, &mut process, &mut stack) => Some(booted),
        () = cancel.cancelled() => None,
    };
    let outcome = match booted {
        Some(Ok(base_url)) => {
            lock.tell(Some(&base_url))?;
            tokio::select! {
                () = cancel.cancelled() => Ok(()),
                name = stack.broken() => Err(anyhow::anyhow!("the {name} ended; see .weir/log/weir.log")),
            }
        }
        Some(Err(error)) => Err(error),
        None => Ok(()),
    };
    say("\nweir: stopping");
    stack.stop().await;
    outcome
}

/// From nothing to a printed answer; returns the gateway's URL.
async fn boot(
    state: &StateDir,
    database_url: &str,
    device: Device,
    kafka: Option<RawKafka>,
    model: PathBuf,
    process: &mut Process,
    stack: &mut Stack,
) -> anyhow::Result<String> {
    let components = components::start(state, database_url, device, kafka, process, stack).await?;
    for (usual, url) in &components.moved {
        say(&format!("weir: port {usual} is taken; using {url} instead"));
    }
    say(&format!("weir: control plane at {}, gateway at {}", components.admin_url, components.base_url));
    let inspection = tokio::task::spawn_blocking(move || weir_worker::inspect(&model)).await??;
    let admin = Admin::new(&components.admin_url, &components.admin_token)?;
    let path = state.path(dev_env::FILE);
    let api_key = first_run::ensure(&admin, &inspection, &path, &components.admin_url).await?;
    let env = DevEnv {
        base_url: components.base_url.clone(),
        api_key,
        admin_url: components.admin_url.clone(),
        admin_token: components.admin_token.clone(),
        metrics_url: components.metrics_url.clone(),
        kafka_brokers: components.kafka_brokers.clone(),
    };
    env.write(&path)?;
    wait_until_ready(&components).await?;
    first_run::retire_lost_gateways(&admin).await?;
    let tenant = Admin::new(&env.admin_url, &env.api_key)?;
    first_answer::show(&env.base_url, &env.api_key, &tenant, &Process::clock()).await?;
    explain(&components);
    Ok(env.base_url)
}

async fn wait_until_ready(components: &Components) -> anyhow::Result<()> {
    say("weir: loading the model");
    let started = Instant::now();
    let mut shown = String::new();
    loop {
        let obstacle = match ((components.worker_ready)(), (components.gateway_ready)()) {
            (Ok(()), Ok(())) => break,
            (Err(reason), _) => format!("worker: {reason}"),
            (Ok(()), Err(reason)) => format!("gateway: {reason}"),
        };
        if started.elapsed() > READY_TIMEOUT {
            bail!("not ready after {} s ({obstacle}); see .weir/log/weir.log", READY_TIMEOUT.as_secs());
        }
        if obstacle != shown && started.elapsed() > Duration::from_secs(1) {
            say(&format!("weir: {:>4.1} s  {obstacle}", started.elapsed().as_secs_f32()));
            shown = obstacle;
        }
        tokio::time::sleep(POLL).await;
    }
    say(&format!("weir: ready after {:.1} s", started.elapsed().as_secs_f32()));
    Ok(())
}

/// How to go on.
fn explain(components: &Components) {
    let Components { docs_url, base_url, admin_url, metrics_url, kafka_brokers, .. } = components;
    let kafka = kafka_brokers.as_ref().map(|brokers| format!("\n  Kafka                  {brokers}"));
    let kafka = kafka.unwrap_or_default();
    let alias = first_run::ALIAS;
    say(&format!(
        r#"
Addresses and keys are in .weir/dev.env; the logs are in .weir/log/weir.log.
  OpenAI-compatible API  {base_url}
  admin and tenant API   {admin_url}
  API docs               {docs_url}
  metrics                {metrics_url}{kafka}

curl:
  . .weir/dev.env && curl -N "$WEIR_BASE_URL/chat/completions" \
    -H "Authorization: Bearer $WEIR_API_KEY" -H "Content-Type: application/json" \
    -d '{{"model": "{alias}", "stream": true, "max_tokens": 100, "messages": [{{"role": "user", "content": "Hello!"}}]}}'

Python (pip install openai; set -a; . .weir/dev.env):
  import os, openai
  client = openai.OpenAI(base_url=os.environ["WEIR_BASE_URL"], api_key=os.environ["WEIR_API_KEY"])
  answer = client.chat.completions.create(
      model="{alias}", max_tokens=100, messages=[{{"role": "user", "content": "Hello!"}}])
  print(answer.choices[0].message.content)

Stop with Ctrl-C, or: make down"#
    ));
}
