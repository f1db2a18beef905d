//! Who runs Postgres: oneself, or an unprivileged account when one is root, as Postgres refuses to run as root.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, bail};
use nix::unistd::{Uid, User};

/// Debian's package makes the first; the second is made here where only the programs are installed.
const ACCOUNTS: [&str; 2] = ["postgres", "weir-postgres"];

/// The account that Postgres runs under.
#[derive(Debug)]
pub(super) struct Account {
    uid: u32,
    gid: u32,
    is_other: bool,
}

impl Account {
    pub(super) fn find() -> anyhow::Result<Self> {
        let own = Uid::effective();
        if !own.is_root() {
            let gid = nix::unistd::Gid::effective().as_raw();
            return Ok(Self { uid: own.as_raw(), gid, is_other: false });
        }
        let user = match lookup()? {
            Some(user) => user,
            None => {
                create(ACCOUNTS[1])?;
                lookup()?.context("the account that was just made is not there")?
            }
        };
        Ok(Self { uid: user.uid.as_raw(), gid: user.gid.as_raw(), is_other: true })
    }

    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    pub(super) fn gid(&self) -> u32 {
        self.gid
    }

    /// Another account than the one that this process runs under.
    pub(super) fn is_other(&self) -> bool {
        self.is_other
    }

    /// Makes a command run under the account; supplementary groups are dropped with the user.
    pub(super) fn apply(&self, command: &mut Command) {
        if self.is_other {
            command.uid(self.uid).gid(self.gid);
        }
    }
}

fn lookup() -> anyhow::Result<Option<User>> {
    for name in ACCOUNTS {
        if let Some(user) = User::from_name(name).with_context(|| format!("cannot look up {name}"))? {
            return Ok(Some(user));
        }
    }
    Ok(None)
}

fn create(name: &str) -> anyhow::Result<()> {
    let status = Command::new("useradd")
        .args([
            "--system",
            "--no-create-home",
            "--home-dir",
            "/nonexistent",
            "--shell",
            "/usr/sbin/nologin",
            name,
        ])
        .status()
        .context("cannot run useradd")?;
    if !status.success() {
        bail!("useradd could not make the account {name} that Postgres runs under");
    }
    Ok(())
}
