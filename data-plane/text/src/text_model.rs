//! One model's tokenizer, chat template and special ids, built from [`ModelText`].

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use crate::answer_form::{AnswerForm, ToolFamily};
use crate::chat::{
    ChatMessage, ChatTemplate, Conversation, Guard, Place, RenderedChat, SpecialNames, TemplateError, Tool,
    nine_characters, rewrite,
};
use crate::encoder::{Encoder, Literals, MAX_TEXT_BYTES};
use crate::error::TextError;
use crate::grammar::GrammarTokens;
use crate::merge::Word;
use crate::model_text::ModelText;
use crate::vocabulary::{TokenKind, Vocabulary};

/// Names under which models end a turn or a text, beside the ids that the artifact declares. They count only where
/// the vocabulary has them as control tokens.
const END_OF_GENERATION_NAMES: [&[u8]; 10] = [
    b"<|im_end|>",
    b"<|endoftext|>",
    b"<|end_of_text|>",
    b"<|eot_id|>",
    b"<|eom_id|>",
    b"<|end|>",
    b"<end_of_turn>",
    b"<|eot|>",
    b"</s>",
    // FunctionGemma hands over to its tools with it.
    b"<start_function_response>",
];

/// Immutable and shared: every method takes `&self`.
#[derive(Debug)]
pub struct TextModel {
    encoder: Encoder,
    /// Control tokens, as a template's output names them. One of a single character is not among them: it could not
    /// be told from the same character in a message.
    control: Option<Literals>,
    special_names: SpecialNames,
    template: Option<ChatTemplate>,
    form: AnswerForm,
    /// Those marks of the form that are control tokens.
    mark_tokens: Vec<(&'static str, u32)>,
    /// Set where every prompt starts with it.
    prepended_bos: Option<u32>,
    eos_ids: Vec<u32>,
    /// Made when the first grammar is compiled; none if no token ends an answer.
    grammar_tokens: OnceLock<Option<Arc<GrammarTokens>>>,
}

impl TextModel {
    /// Refuses whatever it does not know exactly how to interpret. Takes about 0.1 s for 50,000 tokens.
    pub fn new(data: ModelText) -> Result<Self, TextError> {
        data.check_bounds()?;
        let encoder = Encoder::new(&data)?;
        let vocabulary = encoder.vocabulary();
        let ids = [
            data.bos_token_id,
            data.eos_token_id,
            data.eot_token_id,
            data.eom_token_id,
            data.unknown_token_id,
            data.padding_token_id,
        ];
        if let Some(id) = ids.into_iter().flatten().find(|&id| vocabulary.kind(id).is_none()) {
            return Err(TextError::BadVocabulary(format!("special token {id} does not exist")));
        }
        let add_bos = data.add_bos_token.unwrap_or(data.tokenizer_model == "llama");
        if add_bos && data.bos_token_id.is_none() {
            return Err(TextError::BadVocabulary(
                "prompts start with a token that is not declared".to_owned(),
            ));
        }
        let spelt = |id: Option<u32>| id.map(|id| String::from_utf8_lossy(vocabulary.bytes(id)).into_owned());
        let form = AnswerForm::of(&data);
        let template = match data.chat_template {
            Some(source) => {
                Some(ChatTemplate::new(source, spelt(data.bos_token_id), spelt(data.eos_token_id))?)
            }
            None => None,
        };
        Ok(Self {
            control: Literals::new(vocabulary, TokenKind::Control, 2)?,
            special_names: SpecialNames::new(control_names(vocabulary))?,
            template,
            form,
            mark_tokens: mark_tokens(vocabulary, &form.marks(true)),
            prepended_bos: data.bos_token_id.filter(|_| add_bos),
            eos_ids: end_of_generation(vocabulary, [data.eos_token_id, data.eot_token_id, data.eom_token_id]),
            encoder,
            grammar_tokens: OnceLock::new(),
        })
    }

    /// Number of token ids.
    pub fn vocab_size(&self) -> usize {
        self.encoder.vocabulary().len()
    }

    /// Tokens that end a generation, ascending.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// The bytes that a token adds to the text: none for control tokens and for ids that do not exist.
    #[inline]
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.encoder.vocabulary().text_bytes(id)
    }

    /// The text of a token that is whole characters.
    #[inline]
    pub(crate) fn whole_text(&self, id: u32) -> Option<&str> {
        self.encoder.vocabulary().whole_text(id)
    }

    /// Tokens of a prompt that is only text; what looks like a control token in it stays text. Begins with the
    /// begin-of-sequence token if the model wants one.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        check_length(text)?;
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        ids.extend(self.prepended_bos);
        self.encoder.encode(text, &mut Word::default(), &mut ids);
        Ok(ids)
    }

    /// A lower bound of how many tokens `text` becomes, by counting its bytes: with it a caller refuses at once what
    /// could never fit a context, however slow it were to encode. Control tokens count as the text of their names.
    pub fn least_tokens(&self, text: &str) -> usize {
        self.encoder.least_tokens(text)
    }

    /// The conversation as the model's template writes it. `strftime_now` is unknown to the template.
    pub fn render_chat(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
    ) -> Result<RenderedChat, TemplateError> {
        self.render_chat_at(messages, &[], add_generation_prompt, None)
    }

    /// The same with tools, and for templates that write the date: `now` is what `strftime_now` tells, in UTC.
    ///
    /// A template that renders tools in no form that this crate reads gets them in Hermes' form as part of the messages.
    pub fn render_chat_at(
        &self,
        messages: &[ChatMessage],
        tools: &[Tool],
        add_generation_prompt: bool,
        now: Option<SystemTime>,
    ) -> Result<RenderedChat, TemplateError> {
        let template = self.template.as_ref().ok_or(TemplateError::NoTemplate)?;
        if self.form.template_has_tools() {
            let messages = match self.form.tool_family() {
                ToolFamily::Mistral => &nine_characters(messages),
                _ => messages,
            };
            return self.render(template, &Conversation::new(messages, tools)?, add_generation_prompt, now);
        }
        let within = |place| {
            let messages = rewrite(messages, tools, place)?;
            self.render(template, &Conversation::new(&messages, &[])?, add_generation_prompt, now)
        };
        match within(Place::System) {
            // Some templates know no system message.
            Err(TemplateError::Raised(_)) if !tools.is_empty() => within(Place::FirstUser),
            outcome => outcome,
        }
    }

    fn render(
        &self,
        template: &ChatTemplate,
        conversation: &Conversation<'_>,
        add_generation_prompt: bool,
        now: Option<SystemTime>,
    ) -> Result<RenderedChat, TemplateError> {
        let guard = Guard::choose(&conversation.texts(), template.source())?;
        let put = |text| guard.put_into(text, &self.special_names);
        let (messages, tools) = (conversation.messages(&put), conversation.tools(&put));
        let text = template.render(messages, tools, add_generation_prompt, now)?;
        Ok(RenderedChat::new(text, guard))
    }

    /// Whether the prompt ends inside a thought, because the template opens it for the model.
    pub fn opens_thought(&self, rendered: &RenderedChat) -> bool {
        let text = rendered.guarded().trim_end();
        self.form.think_marks().is_some_and(|marks| text.ends_with(marks.open))
    }

    /// How the model's answers are to be read.
    pub fn answer_form(&self) -> &AnswerForm {
        &self.form
    }

    /// Control tokens that a reader of answers has to see: see [`AnswerForm::marks`].
    pub fn mark_tokens(&self, with_tools: bool) -> Vec<u32> {
        self.form.marks(with_tools).into_iter().filter_map(|name| self.mark_token(name)).collect()
    }

    /// The control token that is this mark of the model's form. `None`: the mark is text.
    pub(crate) fn mark_token(&self, name: &str) -> Option<u32> {
        self.mark_tokens.iter().find(|(mark, _)| *mark == name).map(|(_, id)| *id)
    }

    /// The name of a control token; empty for every other token.
    pub(crate) fn control_name(&self, id: u32) -> &[u8] {
        let vocabulary = self.encoder.vocabulary();
        match vocabulary.kind(id) {
            Some(TokenKind::Control) => vocabulary.bytes(id),
            _ => &[],
        }
    }

    /// Tokens of a rendered conversation: the template's control tokens are parsed, those that a message spells out
    /// are not. Begins with the begin-of-sequence token once if the model wants one.
    pub fn encode_rendered(&self, rendered: &RenderedChat) -> Result<Vec<u32>, TextError> {
        let text = rendered.guarded();
        check_length(text)?;
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        let mut word = Word::default();
        let mut rest = 0;
        let mut plain = |range: std::ops::Range<usize>, ids: &mut Vec<u32>| {
            self.encoder.encode(&rendered.guard().strip(&text[range]), &mut word, ids);
        };
        for (range, id) in self.control.iter().flat_map(|control| control.find_iter(text)) {
            plain(rest..range.start, &mut ids);
            ids.push(id);
            rest = range.end;
        }
        plain(rest..text.len(), &mut ids);
        if let Some(bos) = self.prepended_bos.filter(|&bos| ids.first() != Some(&bos)) {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// The text of all `ids` at once.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id)).copied().collect();
        let bytes = bytes.strip_prefix(b" ").filter(|_| self.has_space_prefix()).unwrap_or(&bytes);
        String::from_utf8_lossy(bytes).into_owned()
    }

    pub(crate) fn grammar_tokens(&self) -> Option<Arc<GrammarTokens>> {
        self.grammar_tokens.get_or_init(|| GrammarTokens::new(self).map(Arc::new)).clone()
    }

    pub(crate) fn has_space_prefix(&self) -> bool {
        self.encoder.has_space_prefix()
    }

    #[cfg(test)]
    pub(crate) fn byte_token(&self, byte: u8) -> Option<u32> {
        self.encoder.vocabulary().byte_token(byte)
    }
}

fn check_length(text: &str) -> Result<(), TextError> {
    match text.len() > MAX_TEXT_BYTES {
        true => Err(TextError::TooLarge { what: "text", limit: MAX_TEXT_BYTES, actual: text.len() }),
        false => Ok(()),
    }
}

fn control_names(vocabulary: &Vocabulary) -> impl Iterator<Item = &str> {
    let control = vocabulary.ids().filter(|&id| vocabulary.kind(id) == Some(TokenKind::Control));
    control.filter_map(|id| std::str::from_utf8(vocabulary.bytes(id)).ok())
}

fn mark_tokens(vocabulary: &Vocabulary, marks: &[&'static str]) -> Vec<(&'static str, u32)> {
    let control = vocabulary.ids().filter(|&id| vocabulary.kind(id) == Some(TokenKind::Control));
    let marked = control.filter_map(|id| {
        let mark = marks.iter().find(|mark| mark.as_bytes() == vocabulary.bytes(id))?;
        Some((*mark, id))
    });
    marked.collect()
}

fn end_of_generation(vocabulary: &Vocabulary, declared: [Option<u32>; 3]) -> Vec<u32> {
    let named = vocabulary.ids().filter(|&id| {
        vocabulary.kind(id) == Some(TokenKind::Control)
            && END_OF_GENERATION_NAMES.contains(&vocabulary.bytes(id))
    });
    let mut ids: Vec<u32> = declared.into_iter().flatten().chain(named).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}
