//! The private Postgres of `weir up`: Debian's programs, a data folder of our own, a unix socket and nothing else.
//!
//! It runs in its own process group under an unprivileged account, so that Ctrl-C and the death of `weir` leave it
//! alone; a later start takes over one that still runs. It is stopped last, by name of its data folder.

mod account;
mod programs;

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::keeper::Program;
use super::state_dir::StateDir;
use account::Account;
use programs::Programs;

/// A first start, or one after a crash, replays its log; on a slow disk that takes tens of seconds.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// A running one answers at once; recovery after a crash is covered by the start's own wait.
const ADOPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two attempts to start one that ends at once.
const SPAWN_INTERVAL: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(50);
/// A unix socket's path has room for 107 bytes; `/.s.PGSQL.5432` follows the folder.
const SOCKET_DIR_BYTES_MAX: usize = 90;
/// The database and the role that owns it.
const DATABASE: &str = "weir";

/// A Postgres that answers.
#[derive(Debug)]
pub(crate) struct Postgres {
    programs: Programs,
    account: Account,
    places: Places,
    /// Ours to wait for, unless it was adopted. Never killed: it outlives this process if that dies.
    child: Option<Child>,
}

/// Where its files are.
#[derive(Debug)]
struct Places {
    data: PathBuf,
    socket: PathBuf,
    log: PathBuf,
}

/// How it came to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It had no data folder yet.
    Created,
    /// Its data was here.
    Started,
    /// It was running already.
    Adopted,
}

impl Postgres {
    /// Finds it running, or starts it; either way it answers and has our database afterwards. Blocks.
    pub(crate) fn start(state: &StateDir) -> anyhow::Result<(Self, Origin)> {
        let account = Account::find()?;
        let places = Places::choose(state, &account)?;
        let programs = Programs::find(&places.data)?;
        let mut postgres = Self { programs, account, places, child: None };
        let origin = postgres.bring_up()?;
        postgres.prepare_database()?;
        Ok((postgres, origin))
    }

    /// One that may still run from an earlier start, for `weir down`.
    pub(crate) fn left_over(state: &StateDir) -> anyhow::Result<Option<Self>> {
        let account = Account::find()?;
        let places = Places::locate(state, &account);
        if !places.data.join("postmaster.pid").exists() {
            return Ok(None);
        }
        let programs = Programs::find(&places.data)?;
        let postgres = Self { programs, account, places, child: None };
        Ok(postgres.is_running()?.then_some(postgres))
    }

    /// The URL under which the components reach the database.
    pub(crate) fn url(&self) -> String {
        format!("postgres:///{DATABASE}?host={}&user={DATABASE}", self.places.socket.display())
    }

    /// Stops it and waits; fine if it is gone already. Blocks.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        if self.is_gone() {
            return Ok(());
        }
        self.ctl(&["stop", "-w", "-m", "fast", "-t", "60"]).context("Postgres does not stop")?;
        if let Some(mut child) = self.child.take() {
            child.wait().context("Postgres was not waited for")?;
        }
        Ok(())
    }

    /// Whether its process has ended; a child of ours is a process until it has been waited for.
    fn is_gone(&mut self) -> bool {
        if let Some(child) = &mut self.child {
            return !matches!(child.try_wait(), Ok(None));
        }
        let pid_file = std::fs::read_to_string(self.places.data.join("postmaster.pid")).unwrap_or_default();
        let Some(pid) = pid_file.lines().next().and_then(|pid| pid.trim().parse::<i32>().ok()) else {
            return true;
        };
        // After a crash of the machine the number may be anybody's.
        let command_line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let data = self.places.data.as_os_str().as_encoded_bytes();
        !command_line.split(|&byte| byte == 0).any(|word| word == data)
    }

    fn bring_up(&mut self) -> anyhow::Result<Origin> {
        let is_new = !self.places.data.join("PG_VERSION").exists();
        if is_new {
            self.initialise()?;
        } else if self.is_running()? {
            if self.answers_within(ADOPT_TIMEOUT) {
                return Ok(Origin::Adopted);
            }
            tracing::warn!("Postgres runs but does not answer on its socket; restarting it");
            self.stop()?;
        }
        self.spawn_until_it_answers()?;
        Ok(if is_new { Origin::Created } else { Origin::Started })
    }

    /// After a kill the first attempts may find the memory of the last one still in use, until its children have ended.
    fn spawn_until_it_answers(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            let runs = self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
            if !runs {
                self.spawn()?;
            }
            if self.answers_within(SPAWN_INTERVAL) {
                return Ok(());
            }
        }
        bail!("Postgres does not answer; its log is {}", self.places.log.display())
    }

    /// Local connections are trusted: whoever can reach the socket is root or the account itself.
    fn initialise(&self) -> anyhow::Result<()> {
        // A folder without PG_VERSION is a first start that was cut short.
        if self.places.data.exists() {
            std::fs::remove_dir_all(&self.places.data)?;
        }
        let mut initdb = self.command("initdb");
        initdb
            .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-D"])
            .arg(&self.places.data);
        let output = initdb.output().context("cannot run initdb")?;
        if !output.status.success() {
            bail!("initdb failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    fn spawn(&mut self) -> anyhow::Result<()> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&self.places.log)
            .with_context(|| format!("cannot log to {}", self.places.log.display()))?;
        let mut postgres = self.command("postgres");
        postgres.arg("-D").arg(&self.places.data);
        for setting in [
            "listen_addresses=".to_owned(),
            format!("unix_socket_directories={}", self.places.socket.display()),
            "unix_socket_permissions=0700".to_owned(),
            "port=5432".to_owned(),
        ] {
            postgres.arg("-c").arg(setting);
        }
        postgres.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        self.child = Some(postgres.spawn().context("cannot run postgres")?);
        Ok(())
    }

    fn prepare_database(&self) -> anyhow::Result<()> {
        let exists = |what: &str| -> anyhow::Result<bool> { Ok(!self.query(what)?.trim().is_empty()) };
        if !exists("SELECT 1 FROM pg_roles WHERE rolname = 'weir'")? {
            self.query("CREATE ROLE weir LOGIN CREATEROLE")?;
        }
        // Tenant reads run as this role, which is neither owner nor superuser.
        if !exists("SELECT 1 FROM pg_roles WHERE rolname = 'weir_tenant'")? {
            self.query("CREATE ROLE weir_tenant NOLOGIN")?;
            self.query("GRANT weir_tenant TO weir")?;
        }
        if !exists("SELECT 1 FROM pg_database WHERE datname = 'weir'")? {
            self.query("CREATE DATABASE weir OWNER weir TEMPLATE template0")?;
        }
        Ok(())
    }

    fn is_running(&self) -> anyhow::Result<bool> {
        let status = self.command("pg_ctl").arg("status").arg("-D").arg(&self.places.data).output();
        Ok(status.context("cannot run pg_ctl")?.status.success())
    }

    fn answers_within(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        loop {
            if self.query("SELECT 1").is_ok() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(POLL);
        }
    }

    /// One statement as superuser.
    fn query(&self, sql: &str) -> anyhow::Result<String> {
        let mut psql = self.command("psql");
        psql.args([
            "-q",
            "-X",
            "-A",
            "-t",
            "-U",
            "postgres",
            "-d",
            "postgres",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
        ]);
        let output = psql.arg(&self.places.socket).args(["-c", sql]).output().context("cannot run psql")?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            bail!("psql: {}", String::from_utf8_lossy(&output.stderr).trim())
        }
    }

    fn ctl(&self, args: &[&str]) -> anyhow::Result<()> {
        let output = self.command("pg_ctl").args(args).arg("-D").arg(&self.places.data).output()?;
        if output.status.success() {
            Ok(())
        } else {
            bail!("pg_ctl: {}", String::from_utf8_lossy(&output.stderr).trim())
        }
    }

    /// A Postgres program under the right account, in a folder that it can reach.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.path(program));
        command.current_dir("/").env_remove("PGHOST").env_remove("PGPORT").env_remove("PGDATA");
        self.account.apply(&mut command);
        command
    }
}

impl Program for Postgres {
    const NAME: &'static str = "Postgres";

    fn has_ended(&mut self) -> bool {
        self.is_gone()
    }

    fn start_again(&mut self) -> anyhow::Result<()> {
        self.spawn_until_it_answers()
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        Self::stop(self)
    }
}

impl Places {
    /// As oneself everything lies in `.weir`; as root it lies where the unprivileged account can reach it.
    fn locate(state: &StateDir, account: &Account) -> Self {
        let home = if account.is_other() {
            Path::new("/var/lib/weir").join(state.tag())
        } else {
            state.path("postgres")
        };
        let mut socket = home.join("socket");
        if socket.as_os_str().len() > SOCKET_DIR_BYTES_MAX {
            socket = std::env::temp_dir().join(format!("weir-{}-{}", account.uid(), state.tag()));
        }
        Self { data: home.join("data"), log: home.join("postgres.log"), socket }
    }

    /// The same, with the folders made.
    fn choose(state: &StateDir, account: &Account) -> anyhow::Result<Self> {
        let places = Self::locate(state, account);
        let home = places.data.parent().context("the data folder has a parent")?;
        DirBuilder::new().recursive(true).mode(0o755).create(home.parent().unwrap_or(home))?;
        private_folder(home, account)?;
        private_folder(&places.socket, account)?;
        Ok(places)
    }
}

/// A folder that only the account (and root) can enter. One of that name that belongs to someone else is refused.
fn private_folder(path: &Path, account: &Account) -> anyhow::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let make = || -> std::io::Result<()> {
        match DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => chown(path, Some(account.uid()), Some(account.gid())),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    };
    make().with_context(|| format!("cannot make {}", path.display()))?;
    let metadata = std::fs::symlink_metadata(path)?;
    if !metadata.is_dir() || metadata.uid() != account.uid() {
        bail!("{} belongs to someone else", path.display());
    }
    std::fs::set_permissions(path, Permissions::from_mode(0o700))?;
    Ok(())
}
