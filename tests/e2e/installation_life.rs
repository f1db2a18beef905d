//! The life of an installation: files that only the owner can read, a private database, restarts that find everything
//! again, a second start that says what runs, a crash that loses nothing.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use reqwest::Method;
use serde_json::json;
use sqlx::Row;
use weir_tests::api::Api;
use weir_tests::installation::{Installation, binary};
use weir_tests::ledger::Ledger;

const PROMPT: &str = "zanzibar-quetzal-prompt-that-must-not-be-logged";

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files
}

/// Files below `folder` that contain any of the words.
fn containing(folder: &Path, words: &[&str]) -> Vec<PathBuf> {
    let holds = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap_or_default();
        words.iter().any(|word| bytes.windows(word.len()).any(|window| window == word.as_bytes()))
    };
    files_below(folder).into_iter().filter(holds).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_finds_everything_again_even_after_a_crash() {
    let mut installation = Installation::start();
    let env = installation.env.clone();
    let api = Api::first_tenant(&installation);
    api.chat(PROMPT, json!({"max_tokens": 5})).await;
    let postgres_pid =
        std::fs::read_to_string(installation.postgres_home().join("data/postmaster.pid")).unwrap();

    // A second start says what already runs, and does not touch it.
    let second = Command::new(binary()).arg("up").current_dir(installation.folder()).output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&second.stdout), String::from_utf8_lossy(&second.stderr));
    assert!(said.contains(&env["WEIR_BASE_URL"]) || said.contains("already"), "{said}");

    // Killed: Postgres lives on and is adopted, the charge is not lost, the key is the same.
    installation.kill();
    installation.resume();
    let adopted = std::fs::read_to_string(installation.postgres_home().join("data/postmaster.pid")).unwrap();
    assert_eq!(adopted.lines().next(), postgres_pid.lines().next(), "the same Postgres goes on");
    assert_eq!(installation.env["WEIR_API_KEY"], env["WEIR_API_KEY"]);
    Api::first_tenant(&installation).chat(PROMPT, json!({"max_tokens": 5})).await;

    // Stopped: nothing runs any more, Postgres last.
    assert!(installation.stop(), "Ctrl-C ends it cleanly");
    assert!(!installation.postgres_home().join("data/postmaster.pid").exists(), "Postgres is stopped too");
    installation.resume();
    assert_eq!(installation.env["WEIR_API_KEY"], env["WEIR_API_KEY"]);
    assert_eq!(installation.env["WEIR_ADMIN_TOKEN"], env["WEIR_ADMIN_TOKEN"]);
    let ledger = Ledger::of(&installation).await;
    let asked = |charge: &&weir_tests::ledger::Charge| charge.generated_tokens <= 5;
    let first_tenant: String =
        sqlx::query("SELECT tenant_id FROM keys").fetch_one(&ledger.pool).await.unwrap().get("tenant_id");
    weir_tests::wait::until("both answers are charged", || async {
        (ledger.charges(&first_tenant).await.iter().filter(asked).count() >= 2).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_was_killed_comes_back_by_itself_and_can_be_stopped() {
    let mut installation = Installation::start();
    let pid_file = installation.postgres_home().join("data/postmaster.pid");
    let pid = || std::fs::read_to_string(&pid_file).ok()?.lines().next()?.trim().parse::<i32>().ok();
    let killed = pid().unwrap();
    let status = Command::new("kill").args(["-9", &killed.to_string()]).status().unwrap();
    assert!(status.success());
    // What is asked meanwhile is answered, and charged afterwards.
    let api = Api::first_tenant(&installation);
    api.chat(PROMPT, json!({"max_tokens": 3})).await;
    weir_tests::wait::until("another Postgres runs", || async { pid().filter(|&pid| pid != killed) }).await;
    let ledger = Ledger::of(&installation).await;
    let tenant: String =
        sqlx::query("SELECT tenant_id FROM keys").fetch_one(&ledger.pool).await.unwrap().get("tenant_id");
    weir_tests::wait::until("the answer is charged", || async {
        ledger.charges(&tenant).await.iter().any(|charge| charge.generated_tokens == 3).then_some(())
    })
    .await;
    drop(ledger);
    // As after a crash of the machine: both are gone, and the number in the file is somebody else's.
    let killed = pid().unwrap();
    installation.kill();
    assert!(Command::new("kill").args(["-9", &killed.to_string()]).status().unwrap().success());
    let lines = std::fs::read_to_string(&pid_file).unwrap();
    let (_, rest) = lines.split_once('\n').unwrap();
    std::fs::write(&pid_file, format!("{}\n{rest}", std::process::id())).unwrap();
    installation.resume();
    Api::first_tenant(&installation).chat(PROMPT, json!({"max_tokens": 3})).await;
    assert!(installation.stop(), "it ends cleanly");
    assert!(!pid_file.exists(), "Postgres is stopped too");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_state_folder_beside_a_kept_database_heals() {
    let mut installation = Installation::start();
    assert!(installation.stop());
    // All but what Postgres keeps, which as root lies elsewhere.
    for name in ["gateway", "worker", "control-plane", "dev.env", "internal_secret"] {
        let path = installation.state_dir().join(name);
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap()
        } else {
            std::fs::remove_file(path).unwrap()
        }
    }
    // It serves only once its first answer was given, under the limits of a gateway that holds the lease.
    installation.resume();
    Api::first_tenant(&installation).chat("Hi", json!({"max_tokens": 2})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_prompts_and_the_database_are_private() {
    let installation = Installation::start();
    Api::first_tenant(&installation).chat(PROMPT, json!({"max_tokens": 5, "user": "someone"})).await;
    assert_eq!(mode(&installation.state_dir().join("dev.env")), 0o600);
    assert_eq!(mode(&installation.state_dir()), 0o700);
    for name in ["WEIR_BASE_URL", "WEIR_API_KEY", "WEIR_ADMIN_URL", "WEIR_ADMIN_TOKEN", "WEIR_METRICS_URL"] {
        assert!(installation.env[name].len() > 8, "{name}");
    }
    assert!(
        installation.env["WEIR_BASE_URL"].ends_with("/v1")
            && installation.env["WEIR_ADMIN_URL"].ends_with("/api/v1")
    );

    // Neither prompt nor key nor token in any file of the run but dev.env.
    let words = [PROMPT, &installation.env["WEIR_API_KEY"], &installation.env["WEIR_ADMIN_TOKEN"]];
    let leaks = |folder: &Path| -> Vec<PathBuf> {
        let found = containing(folder, &words);
        found.into_iter().filter(|path| !path.ends_with("dev.env")).collect()
    };
    assert_eq!(leaks(&installation.state_dir()), Vec::<PathBuf>::new());
    assert_eq!(leaks(&installation.postgres_home()), Vec::<PathBuf>::new());

    // Postgres listens on its socket alone, in a folder that others cannot enter.
    let ledger = Ledger::of(&installation).await;
    let listens: String = sqlx::query("SHOW listen_addresses").fetch_one(&ledger.pool).await.unwrap().get(0);
    assert_eq!(listens, "");
    assert_eq!(mode(&installation.postgres_home()), 0o700);
    // Tenants' reads run as a role that is neither owner nor superuser and cannot pass row-level security.
    let role =
        sqlx::query("SELECT rolsuper, rolbypassrls, rolcanlogin FROM pg_roles WHERE rolname = 'weir_tenant'")
            .fetch_one(&ledger.pool)
            .await
            .unwrap();
    assert_eq!([0, 1, 2].map(|column| role.get::<bool, _>(column)), [false; 3]);
    let owned = sqlx::query("SELECT count(*) FROM pg_tables WHERE tableowner = 'weir_tenant'")
        .fetch_one(&ledger.pool)
        .await
        .unwrap();
    assert_eq!(owned.get::<i64, _>(0), 0);

    // The API's documentation loads nothing from outside.
    let docs = installation.env["WEIR_ADMIN_URL"].replace("/api/v1", "/docs/");
    let page = reqwest::get(docs).await.unwrap();
    assert_eq!(page.status(), 200);
    let html = page.text().await.unwrap();
    assert!(
        html.contains("<html") && !html.contains("src=\"http") && !html.contains("href=\"http"),
        "{html}"
    );
    let operations = Api::operator(&installation).control(Method::GET, "/tenants", None).await;
    assert_eq!(operations.0, 200);
}
