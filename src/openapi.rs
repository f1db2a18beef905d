//! `weir openapi`: the contract, as the control plane serves it.

pub(crate) fn run() -> anyhow::Result<()> {
    crate::screen::say(weir_server::openapi_yaml().trim_end());
    Ok(())
}
