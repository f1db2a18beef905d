//! Ids of calls as Mistral's templates demand them: nine letters and digits, else they refuse the conversation. OpenAI's
//! ids are longer, so one that does not fit is replaced, the same wherever it stands.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use super::ChatMessage;

const CHARACTERS: usize = 9;
const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// The messages with ids that fit.
pub(crate) fn nine_characters(messages: &[ChatMessage]) -> Cow<'_, [ChatMessage]> {
    if messages.iter().flat_map(ids).all(fits) {
        return Cow::Borrowed(messages);
    }
    let mut messages = messages.to_vec();
    for message in &mut messages {
        let calls = message.tool_calls.iter_mut().map(|call| &mut call.id);
        for id in calls.chain(&mut message.tool_call_id).filter(|id| !fits(id)) {
            *id = short(id);
        }
    }
    Cow::Owned(messages)
}

fn ids(message: &ChatMessage) -> impl Iterator<Item = &str> {
    message.tool_calls.iter().map(|call| call.id.as_str()).chain(message.tool_call_id.as_deref())
}

fn fits(id: &str) -> bool {
    id.len() == CHARACTERS && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn short(id: &str) -> String {
    let digest = Sha256::digest(id);
    digest
        .iter()
        .take(CHARACTERS)
        .map(|&byte| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ToolCall;

    #[test]
    fn a_call_and_its_result_keep_one_id() {
        let messages = |id: &str| {
            let call = ToolCall { id: id.into(), ..ToolCall::default() };
            [
                ChatMessage { tool_calls: vec![call], ..ChatMessage::new("assistant", "") },
                ChatMessage { tool_call_id: Some(id.into()), ..ChatMessage::new("tool", "") },
            ]
        };
        let long = messages("call_0123456789abcdef");
        let short = nine_characters(&long);
        let id = &short[0].tool_calls[0].id;
        assert!(fits(id), "{id}");
        assert_eq!(short[1].tool_call_id.as_ref(), Some(id));
        assert_ne!(nine_characters(&messages("call_1"))[1].tool_call_id.as_ref(), Some(id));
        assert!(matches!(nine_characters(&messages("aB3456789")), Cow::Borrowed(_)));
    }
}
