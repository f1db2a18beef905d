//! A shared prefix is computed once, within one tenant.

use crate::support::{TestWorker, generate, tenant};

/// Tokens of a block.
const BLOCK: u64 = 16;

#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_second_request_takes_whole_blocks_and_another_tenant_gets_none() {
    let worker = TestWorker::ready().await;
    let mut session = worker.session().await;
    // Four blocks and a bit that both share, then different ends.
    let shared: Vec<u32> = (0..70).map(|n| 300 + n * 7).collect();
    let prompt = |end: u32| [shared.as_slice(), &[end, end + 1, end + 2]].concat();
    let length = prompt(0).len() as u64;

    let (_, cold) = session.complete(generate(1, prompt(1000), 4)).await;
    assert_eq!((cold.cached_prompt_tokens, cold.computed_prompt_tokens), (0, length));

    let (warm_answer, warm) = session.complete(generate(2, prompt(2000), 4)).await;
    let cached = 70 / BLOCK * BLOCK;
    assert_eq!((warm.cached_prompt_tokens, warm.computed_prompt_tokens), (cached, length - cached));

    let mut other = generate(3, prompt(2000), 4);
    other.tenant_id = tenant(2).to_string();
    let (other_answer, other) = session.complete(other).await;
    assert_eq!((other.cached_prompt_tokens, other.computed_prompt_tokens), (0, length));
    assert_eq!(other_answer.tokens, warm_answer.tokens, "cached or computed, the answer is the same");

    let load = worker.wait_until_idle().await;
    assert!(load.pages_cached > 0);
    worker.stop().await;
}
