//! A new migration must rebuild the crate: `sqlx::migrate!` only watches the files that it saw.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
}
