//! Changes of the tree that need no content. Each gives the path it worked on, as it is listed.

use super::super::error::Error;
use super::super::sandbox::Sandbox;
use super::super::types::FileEntry;
use super::{broken, entries, next, normal, refusal, relative, shown, spelled, start};
use crate::isolation::spec::{FileWork, Reply};

/// One entry.
pub async fn stat(sandbox: &Sandbox, path: &str) -> Result<FileEntry, Error> {
    let found = spelled(path, move |bytes| async move {
        let reply = start(sandbox, FileWork::Stat { path: bytes }, None).await?;
        entries(sandbox, &reply, path, 1).await
    });
    found.await?.pop().ok_or_else(|| broken(sandbox))
}

/// Makes a directory.
pub async fn make_directory(sandbox: &Sandbox, path: &str, parents: bool) -> Result<String, Error> {
    let bytes = relative(path)?;
    let made = FileWork::MakeDirectory {
        path: bytes.clone(),
        parents,
    };
    done(sandbox, made, path).await?;
    Ok(normal(&shown(&bytes)))
}

/// Gives something another path.
pub async fn rename(
    sandbox: &Sandbox,
    from: &str,
    to: &str,
    overwrite: bool,
) -> Result<String, Error> {
    let new = &relative(to)?;
    spelled(from, move |bytes| async move {
        let work = FileWork::Rename {
            from: bytes,
            to: new.clone(),
            overwrite,
        };
        done(sandbox, work, &format!("{from} to {to}")).await
    })
    .await?;
    Ok(normal(&shown(new)))
}

/// Removes something.
pub async fn remove(sandbox: &Sandbox, path: &str, recursive: bool) -> Result<String, Error> {
    spelled(path, move |bytes| async move {
        let gone = normal(&shown(&bytes));
        let work = FileWork::Remove {
            path: bytes,
            recursive,
        };
        done(sandbox, work, path).await.map(|()| gone)
    })
    .await
}

async fn done(sandbox: &Sandbox, work: FileWork, path: &str) -> Result<(), Error> {
    let reply = start(sandbox, work, None).await?;
    match next(sandbox, &reply).await? {
        (Reply::Ok {}, _) => Ok(()),
        (Reply::Failed { code, detail }, _) => Err(refusal(&code, &detail, path)),
        _ => Err(broken(sandbox)),
    }
}
