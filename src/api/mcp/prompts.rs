//! Prompts: how a set's tools go together, as a text to begin a conversation with.

use rmcp::ErrorData;
use rmcp::model::{
    GetPromptRequestParams, GetPromptResult, Prompt, PromptArgument, PromptMessage, Role,
};
use serde_json::Value;

/// A set's text for models.
pub(super) struct HowTo {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) text: &'static str,
}

/// The argument of every prompt.
const TASK: &str = "task";

impl HowTo {
    pub(super) fn prompt(&self) -> Prompt {
        let task = PromptArgument::new(TASK)
            .with_title("Task")
            .with_description("What is to be done; the text alone when left out.")
            .with_required(false);
        let description = "How to work with these tools, to begin a conversation with.";
        Prompt::new(self.name, Some(description), Some(vec![task])).with_title(self.title)
    }

    /// The text, followed by the task where one is given.
    ///
    /// # Errors
    /// It is not this prompt, or an argument is none of its arguments.
    pub(super) fn get(
        &self,
        request: &GetPromptRequestParams,
    ) -> Result<GetPromptResult, ErrorData> {
        if request.name != self.name {
            let text = format!(
                "there is no prompt {:?}; there is {:?}",
                request.name, self.name
            );
            return Err(ErrorData::invalid_params(text, None));
        }
        let mut text = self.text.to_owned();
        for (name, value) in request.arguments.iter().flatten() {
            match (name.as_str(), value) {
                (TASK, Value::String(task)) => text.push_str(&format!("\n\nThe task: {task}")),
                (TASK, _) => return Err(ErrorData::invalid_params("task: must be a text", None)),
                _ => {
                    let text = format!("{name}: there is no such argument; there is {TASK:?}");
                    return Err(ErrorData::invalid_params(text, None));
                }
            }
        }
        let message = PromptMessage::new_text(Role::User, text);
        Ok(GetPromptResult::new(vec![message]).with_description(self.title))
    }
}
