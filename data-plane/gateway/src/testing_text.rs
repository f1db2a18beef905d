//! A tokenizer of one token a byte, for tests.

use weir_text::ModelText;

/// Five special tokens, then all bytes in GPT-2's spelling.
pub(crate) fn byte_level() -> ModelText {
    const SPECIAL: [(&str, i32); 5] =
        [("<unk>", 2), ("<bos>", 3), ("<eos>", 3), ("<|im_start|>", 3), ("<|im_end|>", 3)];
    let mut tokens: Vec<String> = SPECIAL.iter().map(|(token, _)| (*token).to_owned()).collect();
    let mut token_types: Vec<i32> = SPECIAL.iter().map(|(_, kind)| *kind).collect();
    // Bytes that print stand for themselves, the others for the characters from U+0100 on.
    let mut shifted = 0;
    for byte in 0..=255u8 {
        let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let code = if printable {
            u32::from(byte)
        } else {
            shifted += 1;
            0xff + shifted
        };
        tokens.push(char::from_u32(code).unwrap().to_string());
        token_types.push(1);
    }
    // A tokenizer of this kind has at least one merge; no test's text has this one in it.
    tokens.push("~~".into());
    token_types.push(1);
    ModelText {
        tokenizer_model: "gpt2".into(),
        pre_tokenizer: Some("smollm".into()),
        tokens,
        token_types,
        scores: vec![],
        merges: vec!["~ ~".into()],
        bos_token_id: Some(1),
        eos_token_id: Some(2),
        eot_token_id: None,
        eom_token_id: None,
        unknown_token_id: Some(0),
        padding_token_id: None,
        add_bos_token: Some(false),
        add_space_prefix: None,
        chat_template: None,
    }
}
