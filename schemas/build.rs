//! Compiles the `.proto` files with protox (no `protoc` needed) when the `rpc` feature asks for the stubs.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    #[cfg(feature = "rpc")]
    {
        const FILES: [&str; 3] = ["proto/config.proto", "proto/ledger.proto", "proto/worker.proto"];
        for file in FILES {
            println!("cargo:rerun-if-changed={file}");
        }
        let descriptors = protox::compile(FILES, ["proto"])?;
        tonic_prost_build::configure().compile_fds(descriptors)?;
    }
    println!("cargo:rerun-if-changed=build.rs");
    Ok(())
}
