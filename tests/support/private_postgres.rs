//! A private Postgres for one test process: its own directory, a unix socket only, no fsync (what was committed
//! survives a kill, not a power cut), one fresh database a test. Included by `#[path]` from the integration tests of
//! server, ledger and `tests`; it belongs to no crate.
//!
//! It never outlives the test process, not even one that is killed: a small shell holds the read end of a pipe
//! whose write end only this process has, and stops the server and removes its directory when the pipe closes.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic,
    clippy::allow_attributes,
    clippy::let_underscore_must_use
)]

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Accounts that may run the server when the tests run as root, which Postgres refuses.
const UNPRIVILEGED_ACCOUNTS: [&str; 2] = ["postgres", "nobody"];
const START_DEADLINE: Duration = Duration::from_secs(60);
/// The shell that owns the server: ends it when standard input closes, i.e. when the test process is gone.
const KEEPER: &str = r#"
"$0/postgres" -D "$1/data" >"$1/server.log" 2>&1 </dev/null &
server=$!
cat >/dev/null
kill -INT "$server"; wait "$server"
[ -e "$1/keep" ] || rm -rf "$1"
"#;

/// One running server.
#[derive(Debug)]
pub struct PrivatePostgres {
    root: PathBuf,
    binaries: PathBuf,
    account: Option<String>,
    keeper: Mutex<Option<Child>>,
    databases: AtomicU32,
}

impl PrivatePostgres {
    /// The server that all tests of this process share.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<PrivatePostgres> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// A server of one's own, for tests that stop it.
    pub fn start() -> Self {
        static SERVERS: AtomicU32 = AtomicU32::new(0);
        let number = SERVERS.fetch_add(1, Ordering::Relaxed);
        // Short, because a unix socket's path is limited to 107 bytes.
        let root = std::env::temp_dir().join(format!("weir-pg-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir(&root).unwrap();
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o700)).unwrap();
        let account = (id("-u", None) == Some(0)).then(unprivileged_account);
        if let Some(account) = &account {
            chown(&root, id("-u", Some(account)), id("-g", Some(account))).unwrap();
        }
        let server = Self {
            root,
            binaries: binaries(),
            account,
            keeper: Mutex::new(None),
            databases: AtomicU32::new(0),
        };
        let data = server.root.join("data");
        server.must(
            &["initdb", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-N", "-D"],
            &data,
        );
        std::fs::write(data.join("postgresql.auto.conf"), server.settings()).unwrap();
        server.resume();
        server.execute(
            "CREATE ROLE weir LOGIN CREATEROLE; CREATE ROLE weir_tenant NOLOGIN; GRANT weir_tenant TO weir",
        );
        server
    }

    /// A fresh, empty database owned by the role `weir`; returns its connection URL.
    pub fn fresh_database(&self) -> String {
        let name = format!("weir_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.execute(&format!("CREATE DATABASE {name} OWNER weir TEMPLATE template0"));
        format!("postgres:///{name}?host={}&user=weir", self.root.display())
    }

    /// Stops the server at once, as an outage; the data stays.
    pub fn pause(&self) {
        std::fs::write(self.root.join("keep"), "").unwrap();
        self.end();
    }

    /// Ends the server and all its backends with SIGKILL, as a crash; what was committed stays.
    pub fn crash(&self) {
        std::fs::write(self.root.join("keep"), "").unwrap();
        self.signal("KILL");
        self.end();
    }

    /// Stops the server and all its backends in their tracks: connections stay, and nothing answers.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    /// Lets a frozen server go on.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let pid_file = std::fs::read_to_string(self.root.join("data/postmaster.pid")).unwrap();
        let server = pid_file.lines().next().unwrap();
        let backends = std::fs::read_to_string(format!("/proc/{server}/task/{server}/children")).unwrap();
        let mut kill = Command::new("kill");
        kill.args(["-s", name, server]).args(backends.split_whitespace());
        // A backend that ended meanwhile is not an error.
        let _ = kill.stderr(Stdio::null()).status().unwrap();
    }

    /// Starts the server (again) and waits until it answers.
    pub fn resume(&self) {
        let _ = std::fs::remove_file(self.root.join("keep"));
        let mut command = self.command("sh");
        command.arg("-c").arg(KEEPER).arg(&self.binaries).arg(&self.root);
        // A group of its own, so that Ctrl-C in a terminal leaves the order of stopping to us.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        *self.keeper.lock().unwrap() = Some(command.spawn().unwrap());
        let deadline = Instant::now() + START_DEADLINE;
        while !self.try_execute("SELECT 1") {
            let log = std::fs::read_to_string(self.root.join("server.log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "the private Postgres does not answer:\n{log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs one statement (or several, separated by semicolons) as superuser in the `postgres` database.
    pub fn execute(&self, sql: &str) {
        assert!(self.try_execute(sql), "SQL failed: {sql}");
    }

    fn try_execute(&self, sql: &str) -> bool {
        let mut psql = Command::new(self.binaries.join("psql"));
        psql.args(["-q", "-X", "-U", "postgres", "-d", "postgres", "-v", "ON_ERROR_STOP=1", "-h"]);
        psql.arg(&self.root);
        for statement in sql.split(';') {
            psql.args(["-c", statement]);
        }
        psql.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    }

    fn end(&self) {
        if let Some(mut keeper) = self.keeper.lock().unwrap().take() {
            drop(keeper.stdin.take());
            keeper.wait().unwrap();
        }
    }

    fn settings(&self) -> String {
        format!(
            "listen_addresses = ''\nunix_socket_directories = '{}'\nfsync = off\n\
             full_page_writes = off\nmax_connections = 200\nshared_buffers = 32MB\n",
            self.root.display()
        )
    }

    /// The command, under the unprivileged account where one is needed.
    fn command(&self, program: &str) -> Command {
        let mut command = match &self.account {
            Some(account) => {
                let mut command = Command::new("runuser");
                command.args(["-u", account, "--", program]);
                command
            }
            None => Command::new(program),
        };
        command.current_dir("/");
        command
    }

    fn must(&self, words: &[&str], last: &Path) {
        let program = self.binaries.join(words[0]);
        let output = self.command(program.to_str().unwrap()).args(&words[1..]).arg(last).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        // A frozen one could not be ended.
        if self.root.join("data/postmaster.pid").exists() {
            self.thaw();
        }
        let _ = std::fs::remove_file(self.root.join("keep"));
        self.end();
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn id(what: &str, account: Option<&str>) -> Option<u32> {
    let output = Command::new("id").arg(what).args(account).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

fn unprivileged_account() -> String {
    let found = UNPRIVILEGED_ACCOUNTS.into_iter().find(|account| id("-u", Some(account)).is_some());
    found.expect("as root, the tests need an account `postgres` or `nobody` to run Postgres under").to_owned()
}

/// Where Postgres' programs lie: Debian keeps them off the search path, one folder a version; the newest wins.
fn binaries() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .max()
        .map(|version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin")));
    newest.filter(|folder| folder.join("initdb").exists()).unwrap_or_else(|| {
        let output = Command::new("pg_config").arg("--bindir").output().expect("Postgres is not installed");
        PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
    })
}
