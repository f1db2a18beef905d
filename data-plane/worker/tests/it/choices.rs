//! Several choices of one request, log-probabilities, penalties and biases.

use weir_schemas::records::ExecutionOutcome;
use weir_schemas::rpc::worker::{FinishReason, Generate, Sampling, TokenBias};

use crate::support::{TestWorker, generate, records, request};

fn drawn(number: u128, seed: u64) -> Generate {
    let sampling = Sampling { temperature: 1.0, top_p: 1.0, seed, ..Sampling::default() };
    Generate { sampling: Some(sampling), ..generate(number, (600..620).collect(), 12) }
}

#[tokio::test(flavor = "multi_thread")]
async fn choices_differ_the_first_is_what_one_alone_gives_and_one_record_counts_them() {
    let worker = TestWorker::ready().await;
    let mut session = worker.session().await;
    let (alone, _) = session.complete(drawn(1, 5)).await;
    let handle = session.send(Generate { n: 3, ..drawn(2, 5) }).await;
    let mut choices = Vec::new();
    for handle in handle..handle + 3 {
        let (answer, finished) = session.finish(handle).await;
        assert_eq!((finished.reason(), finished.prompt_tokens), (FinishReason::Length, 20));
        choices.push(answer.tokens);
    }
    assert_eq!(choices[0], alone.tokens);
    assert!(choices[1] != choices[0] && choices[2] != choices[0] && choices[2] != choices[1]);
    let folder = worker.stop().await;
    let data = records(folder.path()).remove(&request(2)).unwrap().data;
    assert_eq!((data.seats, data.generated_tokens, data.prompt_tokens), (3, 36, 20));
    assert_eq!(data.cached_tokens + data.computed_tokens, 20, "the prompt counts once");
    assert_eq!(data.outcome, ExecutionOutcome::Length);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_choice_is_cancelled_by_its_own_handle() {
    let worker = TestWorker::ready().await;
    let mut session = worker.session().await;
    let handle = session.send(Generate { n: 2, max_tokens: 900, ..drawn(1, 5) }).await;
    session.read_until(handle, |answer| !answer.tokens.is_empty()).await;
    session.cancel(handle).await;
    let (_, finished) = session.finish(handle).await;
    assert_eq!(finished.reason(), FinishReason::Cancelled);
    session.read_until(handle + 1, |answer| answer.tokens.len() > 20).await;
    session.cancel(handle + 1).await;
    assert_eq!(session.finish(handle + 1).await.1.reason(), FinishReason::Cancelled);
    worker.wait_until_idle().await;
    let too_many = session.complete(Generate { n: 129, ..drawn(2, 5) }).await.1;
    assert_eq!(too_many.reason(), FinishReason::RefusedInvalid);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logprobs_come_with_their_tokens_and_biases_and_penalties_change_what_is_chosen() {
    let worker = TestWorker::ready().await;
    let mut session = worker.session().await;
    let greedy = |number, sampling: Sampling| Generate {
        sampling: Some(Sampling { top_p: 1.0, ..sampling }),
        ..generate(number, (600..620).collect(), 24)
    };
    let asked = Sampling { logprobs: Some(3), ..Sampling::default() };
    let (answer, _) = session.complete(greedy(1, asked)).await;
    let tokens: Vec<u32> = answer.logprobs.iter().map(|of| of.token).collect();
    assert_eq!(tokens, answer.tokens);
    for of in &answer.logprobs {
        assert_eq!((of.top_tokens.len(), of.top_logprobs.len()), (3, 3));
        assert_eq!(
            (of.top_tokens[0], of.top_logprobs[0]),
            (of.token, of.logprob),
            "greedy takes the likeliest"
        );
        assert!(of.logprob < 0.0 && of.top_logprobs.is_sorted_by(|a, b| a >= b));
    }
    let first = answer.tokens[0];
    let never = vec![TokenBias { token: first, bias: -100.0 }];
    let (biased, _) =
        session.complete(greedy(2, Sampling { logit_bias: never, ..Sampling::default() })).await;
    assert!(!biased.tokens.contains(&first) && biased.logprobs.is_empty());
    // Greedy, this prompt is answered in a loop; a penalty breaks it.
    let penalty = Sampling { frequency_penalty: 2.0, presence_penalty: 2.0, ..Sampling::default() };
    let (penalised, _) = session.complete(greedy(3, penalty)).await;
    let distinct = |tokens: &[u32]| tokens.iter().collect::<std::collections::HashSet<_>>().len();
    assert!(distinct(&penalised.tokens) > distinct(&answer.tokens), "{answer:?} {penalised:?}");
    let refused = Sampling { presence_penalty: 3.0, ..Sampling::default() };
    assert_eq!(session.complete(greedy(4, refused)).await.1.reason(), FinishReason::RefusedInvalid);
    worker.stop().await;
}
