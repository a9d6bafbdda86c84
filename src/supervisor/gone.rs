//! Sandboxes that have ended, remembered for a while: a link to a file of one says that it is gone
//! rather than that it never was.

use std::collections::{HashMap, VecDeque};
use std::time::SystemTime;

use super::owner::{Owner, Scope};

/// Sandboxes that are remembered, of all owners together; the oldest are forgotten first. One takes
/// some 300 bytes.
const MAX_REMEMBERED: usize = 10_000;

/// Why a sandbox ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// A client closed it.
    Closed,
    /// Its lease was over.
    Expired,
    /// It was idle for longer than it was allowed to be.
    Idle,
    /// Its processes died.
    Died,
}

impl EndReason {
    /// The end of a sentence that begins with the sandbox.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Closed => "was closed",
            Self::Expired => "has ended with its lease",
            Self::Idle => "has ended because it was idle",
            Self::Died => "has died",
        }
    }
}

/// What is remembered of a sandbox.
#[derive(Debug, Clone)]
pub struct End {
    /// Whose it was.
    pub owner: Option<Owner>,
    /// Its name.
    pub name: String,
    /// When.
    pub at: SystemTime,
    /// Why.
    pub reason: EndReason,
}

/// The memory.
#[derive(Debug, Default)]
pub struct Gone {
    by_id: HashMap<String, End>,
    /// Ids, oldest first.
    order: VecDeque<String>,
}

impl Gone {
    /// Notes an end.
    pub fn remember(&mut self, id: &str, ended: End) {
        if self.order.len() >= MAX_REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_id.remove(&oldest);
        }
        self.order.push_back(id.to_owned());
        self.by_id.insert(id.to_owned(), ended);
    }

    /// The end of a sandbox that a scope saw.
    pub fn of(&self, id: &str, scope: &Scope) -> Option<&End> {
        let ended = self.by_id.get(id)?;
        scope.sees_of(ended.owner.as_ref()).then_some(ended)
    }

    /// The last end of a sandbox of that name that a scope saw, with its id.
    pub fn named(&self, name: &str, scope: &Scope) -> Option<(&str, &End)> {
        let mut latest = self
            .order
            .iter()
            .rev()
            .filter_map(|id| Some((id, self.of(id, scope)?)));
        latest
            .find(|(_, ended)| ended.name == name)
            .map(|(id, ended)| (id.as_str(), ended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(owner: Option<&str>) -> End {
        End {
            owner: owner.map(|name| Owner::new(name, None, None, None)),
            name: "n".to_owned(),
            at: SystemTime::UNIX_EPOCH,
            reason: EndReason::Closed,
        }
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut gone = Gone::default();
        for n in 0..=MAX_REMEMBERED {
            gone.remember(&n.to_string(), ended(None));
        }
        assert_eq!(gone.by_id.len(), MAX_REMEMBERED);
        assert!(gone.of("0", &Scope::Everything).is_none());
        assert!(gone.of("1", &Scope::Everything).is_some());
        let (id, _) = gone.named("n", &Scope::Everything).expect("one");
        assert_eq!(id, MAX_REMEMBERED.to_string());
    }

    #[test]
    fn what_was_anothers_never_was() {
        let mut gone = Gone::default();
        gone.remember("a", ended(Some("one")));
        let of = |name: &str| Scope::Of(Owner::new(name, None, None, None));
        assert!(gone.of("a", &of("one")).is_some());
        for scope in [of("two"), Scope::Nothing] {
            assert!(gone.of("a", &scope).is_none());
            assert!(gone.named("n", &scope).is_none());
        }
    }
}
