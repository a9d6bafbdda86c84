//! Progress of calls that take long, where the client asked for it with a token.

use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval_at};

use crate::supervisor::{CommandEvent, Event};

/// How often a call that has nothing to say says that it goes on.
const STEP: Duration = Duration::from_secs(1);

/// What a call has told of itself.
pub(super) struct Progress<'a> {
    peer: &'a Peer<RoleServer>,
    token: Option<ProgressToken>,
    told: f64,
}

impl<'a> Progress<'a> {
    pub(super) fn of(context: &'a RequestContext<RoleServer>) -> Self {
        Self {
            peer: &context.peer,
            token: context.meta.get_progress_token(),
            told: 0.0,
        }
    }

    /// Tells of output of running code.
    pub(super) async fn tell(&mut self, event: &Event) {
        if let Event::Stdout(text) | Event::Stderr(text) = event {
            self.say(text).await;
        }
    }

    /// Tells of output of a running command.
    pub(super) async fn tell_command(&mut self, event: &CommandEvent) {
        if let CommandEvent::Stdout(text) | CommandEvent::Stderr(text) = event {
            self.say(text).await;
        }
    }

    /// Says at every step that `what` goes on, until it has ended.
    pub(super) async fn during<T>(mut self, what: &str, task: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let mut steps = interval_at(begun + STEP, STEP);
        let mut task = std::pin::pin!(task);
        loop {
            tokio::select! {
                ended = &mut task => return ended,
                _ = steps.tick() => {
                    let seconds = begun.elapsed().as_secs();
                    self.say(&format!("{what}, {seconds} s")).await;
                }
            }
        }
    }

    async fn say(&mut self, text: &str) {
        let Some(token) = &self.token else { return };
        self.told += 1.0;
        let progress = ProgressNotificationParam::new(token.clone(), self.told);
        let told = self.peer.notify_progress(progress.with_message(text)).await;
        if told.is_err() {
            self.token = None;
        }
    }
}

/// Runs a verb, and tells what it says meanwhile as progress.
pub(super) async fn told<T>(
    context: &RequestContext<RoleServer>,
    mut words: mpsc::Receiver<String>,
    verb: impl Future<Output = T>,
) -> T {
    let mut progress = Progress::of(context);
    let mut verb = std::pin::pin!(verb);
    let done = loop {
        tokio::select! {
            Some(text) = words.recv() => progress.say(&text).await,
            done = &mut verb => break done,
        }
    };
    while let Ok(text) = words.try_recv() {
        progress.say(&text).await;
    }
    done
}
