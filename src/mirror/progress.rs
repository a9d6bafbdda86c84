//! What a build tells while it works, and how a terminal shows it.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// The steps of a build, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Debian packages are fetched and installed.
    Packages,
    /// The virtual environment is filled.
    Python,
    /// Python is byte-compiled.
    ByteCode,
    /// The font list is built and proved.
    Fonts,
    /// Privileges are taken out and the tree is hashed.
    Hash,
}

impl Step {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Packages,
        Self::Python,
        Self::ByteCode,
        Self::Fonts,
        Self::Hash,
    ];

    /// For people.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Packages => "Debian packages",
            Self::Python => "Python packages",
            Self::ByteCode => "byte code",
            Self::Fonts => "fonts",
            Self::Hash => "hash",
        }
    }

    /// Share of a whole build in percent, as measured on two processors.
    const fn weight(self) -> u64 {
        match self {
            Self::Packages => 48,
            Self::Python => 17,
            Self::ByteCode => 22,
            Self::Fonts => 7,
            Self::Hash => 6,
        }
    }

    fn before(self) -> u64 {
        Self::ALL
            .iter()
            .take_while(|step| **step != self)
            .map(|step| step.weight())
            .sum()
    }
}

/// Something that a build wants known.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Another process is building; this one waits for it.
    Waiting,
    /// A thing worth a line of its own, such as a package that is being installed on the host.
    Note(String),
    /// A step began.
    Began(Step),
    /// How far the step is, 0 to 1.
    Fraction(f64),
}

/// Shows a build on stderr: a bar on a terminal, else a line for each step.
pub struct TerminalProgress {
    bar: Option<ProgressBar>,
    step: Step,
    began: Instant,
}

impl TerminalProgress {
    /// Nothing is shown before the first event.
    pub fn new() -> Self {
        Self {
            bar: None,
            step: Step::Packages,
            began: Instant::now(),
        }
    }

    /// Shows an event; hand `&mut |event| progress.show(event)` to a build.
    pub fn show(&mut self, event: Event) {
        match event {
            Event::Waiting => self.line("waiting for another build of the mirror to end"),
            Event::Note(text) => self.line(&text),
            Event::Began(step) => {
                self.step = step;
                if std::io::stderr().is_terminal() {
                    let bar = self.bar.get_or_insert_with(new_bar);
                    bar.set_position(step.before());
                    bar.set_message(step.title());
                } else {
                    let seconds = self.began.elapsed().as_secs();
                    eprintln!("mirror: {} ({seconds} s so far)", step.title());
                }
            }
            Event::Fraction(fraction) => {
                if let Some(bar) = &self.bar {
                    let part = fraction.clamp(0.0, 1.0) * self.step.weight() as f64;
                    bar.set_position(self.step.before() + part as u64);
                }
            }
        }
    }

    /// Takes the bar off the terminal.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }

    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("mirror: {text}"),
        }
    }
}

impl Default for TerminalProgress {
    fn default() -> Self {
        Self::new()
    }
}

fn new_bar() -> ProgressBar {
    let total = Step::ALL.iter().map(|step| step.weight()).sum();
    let style = ProgressStyle::with_template(
        "building the mirror, once {bar:30.cyan/dim} {percent:>3}% {elapsed:>4} {msg}",
    )
    .expect("the template is a constant");
    let bar = ProgressBar::new(total).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_add_up() {
        assert_eq!(Step::ALL.iter().map(|step| step.weight()).sum::<u64>(), 100);
        assert_eq!(Step::Packages.before(), 0);
        assert_eq!(Step::Hash.before() + Step::Hash.weight(), 100);
    }

    #[test]
    fn the_bar_follows_the_steps() {
        let mut progress = TerminalProgress::new();
        progress.bar = Some(new_bar());
        progress.step = Step::Python;
        progress.show(Event::Fraction(0.5));
        let at = progress.bar.as_ref().map(ProgressBar::position);
        assert_eq!(at, Some(Step::Python.before() + Step::Python.weight() / 2));
        progress.show(Event::Fraction(7.0));
        let at = progress.bar.as_ref().map(ProgressBar::position);
        assert_eq!(at, Some(Step::ByteCode.before()));
        progress.finish();
    }
}
