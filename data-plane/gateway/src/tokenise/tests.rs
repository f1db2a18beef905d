use weir_text::ModelText;

use super::*;
use crate::testing_text::byte_level;

const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'assistant' %}{{ raise_exception('no assistant') }}\
     {% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}";

fn model(chat_template: Option<&str>) -> Arc<TextModel> {
    let data = ModelText { chat_template: chat_template.map(str::to_owned), ..byte_level() };
    Arc::new(TextModel::new(data).unwrap())
}

fn chat(role: &str, content: &str) -> Input {
    Input::Chat(vec![ChatMessage::new(role, content)])
}

async fn tokens(model: &Arc<TextModel>, input: Input) -> Result<Vec<u32>, GatewayError> {
    within(model, input, u64::MAX).await
}

async fn within(model: &Arc<TextModel>, input: Input, context: u64) -> Result<Vec<u32>, GatewayError> {
    let tokeniser = Tokeniser::new(1);
    let prompt = tokeniser.tokenise(model.clone(), input, vec![], context, DateTime::UNIX_EPOCH).await;
    prompt.map(|prompt| prompt.tokens)
}

#[tokio::test]
async fn long_and_short_inputs_give_the_same_kind_of_tokens() {
    let model = model(Some(TEMPLATE));
    let short = tokens(&model, chat("user", "ab")).await.unwrap();
    assert_eq!(short.len(), 1 + "user\n".len() + "ab".len() + 1);
    let content = "x".repeat(INLINE_BYTES + 1);
    let long = tokens(&model, chat("user", &content)).await.unwrap();
    assert_eq!(long.len(), 1 + "user\n".len() + content.len() + 1);
    assert_eq!(tokens(&model, Input::Text("abc".into())).await.unwrap().len(), 3);
    assert_eq!(tokens(&model, Input::Tokens(vec![7, 8])).await.unwrap(), [7, 8]);
}

#[tokio::test]
async fn what_cannot_be_tokenised_is_the_callers_error() {
    let with = model(Some(TEMPLATE));
    let reason = |result: Result<Vec<u32>, GatewayError>| match result.unwrap_err() {
        GatewayError::Template { reason, .. } => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason(tokens(&with, chat("assistant", "x")).await), "no assistant");
    assert!(reason(tokens(&model(None), chat("user", "x")).await).contains("/v1/completions"));
    assert!(reason(tokens(&with, Input::Tokens(vec![0, 100_000])).await).contains("token id"));
    assert!(reason(tokens(&with, Input::Text(String::new())).await).contains("empty"));
}

#[tokio::test]
async fn what_can_never_fit_is_refused_with_a_lower_bound_and_what_may_fit_is_not() {
    let model = model(Some(TEMPLATE));
    let huge = "x".repeat(1 << 20);
    for input in [Input::Text(huge.clone()), chat("user", &huge), Input::Tokens(vec![7; 200])] {
        match within(&model, input, 100).await.unwrap_err() {
            GatewayError::ContextLength { limit_tokens: 100, prompt_tokens, .. } => {
                assert!(prompt_tokens > 100)
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(within(&model, Input::Tokens(vec![7; 100]), 100).await.unwrap().len(), 100);
    assert_eq!(within(&model, Input::Text("abc".into()), 3).await.unwrap().len(), 3);
}
