//! `sandcell mirror`: the base and the layers over it on the command line.

use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use clap::Subcommand;
use serde_json::json;

use crate::api::rfc3339;
use crate::config::Config;
use crate::mirror::{Error, Layer, Layers, Listed, Mirror, Report, Store, TerminalProgress};

/// The base file system that every sandbox shares.
#[derive(Debug, Subcommand)]
pub enum MirrorCommand {
    /// Build the base where there is none for this version of sandcell
    ///
    /// Takes two to three minutes and 1.9 GB of disk, and needs root. `sandcell serve` does the same when
    /// it starts without a base. Packages come from where this host's apt and pip get theirs.
    Build {
        /// Build even where there is a base, to take up Debian's security updates
        #[arg(long)]
        fresh: bool,
    },
    /// Show the mirrors on this host, newest first, and the layers of packages in the data directory
    List {
        /// Print one JSON array instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Hash every file of a mirror again and name each difference
    ///
    /// Exits with 1 when there is one.
    Verify {
        /// A mirror's id or the start of it, or a layer's name; the current base where none is given
        id: Option<String>,
    },
    /// Delete mirrors that nobody uses
    Remove {
        /// Ids, or the starts of ids, or names of layers
        #[arg(required_unless_present = "outdated")]
        ids: Vec<String>,
        /// Every mirror that another version of sandcell built
        #[arg(long, conflicts_with = "ids")]
        outdated: bool,
    },
}

/// Carries out a command on the store and the layers of a configuration. Results go to stdout; progress and errors
/// to stderr. Exit status: 0 done, 1 differences found or failed.
pub fn run(command: MirrorCommand, config: &Config) -> ExitCode {
    let layers = Layers::of(&config.data_dir);
    let store = Store::open(&config.mirrors_dir())
        .map(|store| store.with_packages(&config.mirrors.debian_packages));
    let done = store.and_then(|store| match command {
        MirrorCommand::Build { fresh } => build(&store, fresh),
        MirrorCommand::List { json } => list(&store, &layers, json),
        MirrorCommand::Verify { id } => verify(&store, &layers, id.as_deref()),
        MirrorCommand::Remove { ids, outdated } => remove(&store, &layers, &ids, outdated),
    });
    done.unwrap_or_else(|error| {
        eprintln!("sandcell: failed to {error}");
        ExitCode::FAILURE
    })
}

fn build(store: &Store, fresh: bool) -> Result<ExitCode, Error> {
    let before = store.find_base()?;
    if let (Some(mirror), false) = (&before, fresh) {
        println!("{} is built already", mirror.id);
        return Ok(ExitCode::SUCCESS);
    }
    let mut progress = TerminalProgress::new();
    let mut show = |event| progress.show(event);
    let built = if fresh {
        store.rebuild_base(&mut show)
    } else {
        store.build_base(&mut show)
    };
    progress.finish();
    let mirror = built?;
    if before.is_some_and(|before| before.id == mirror.id) {
        println!("{} is up to date", mirror.id);
    } else {
        println!(
            "{} built in {} s: {} in {} entries",
            mirror.id,
            mirror.record.build_seconds,
            size(mirror.record.size_bytes),
            mirror.record.entries
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn list(store: &Store, layers: &Layers, as_json: bool) -> Result<ExitCode, Error> {
    let listed = store.list()?;
    let layers = layers.list()?;
    if as_json {
        let layers = layers.iter().map(json_of_layer);
        let rows: Vec<_> = listed.iter().map(json_of).chain(layers).collect();
        println!("{:#}", json!(rows));
        return Ok(ExitCode::SUCCESS);
    }
    if listed.is_empty() {
        println!("no mirror yet; `sandcell mirror build` makes one");
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{:32}  {:>8}  {:10}  {:6}  RECIPE",
        "ID", "SIZE", "BUILT", "IN USE"
    );
    for Listed {
        mirror,
        in_use,
        current,
    } in &listed
    {
        println!(
            "{:32}  {:>8}  {:10}  {:6}  {}",
            mirror.id,
            size(mirror.record.size_bytes),
            day(mirror.record.created_at),
            if *in_use { "yes" } else { "no" },
            if *current { "current" } else { "outdated" },
        );
    }
    if !layers.is_empty() {
        println!(
            "\n{:32}  {:>8}  {:10}  {:8}  NAME, PACKAGES",
            "LAYER", "SIZE", "BUILT", "OVER"
        );
    }
    for Layer { id, record, .. } in &layers {
        println!(
            "{id:32}  {:>8}  {:10}  {:8}  {}, {}",
            size(record.size_bytes),
            day(record.created_at),
            record.ingredients.base.get(..8).unwrap_or_default(),
            record.name,
            record.ingredients.packages.join(" "),
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn json_of_layer(layer: &Layer) -> serde_json::Value {
    let record = &layer.record;
    json!({
        "id": layer.id,
        "root": layer.root,
        "name": record.name,
        "base": record.ingredients.base,
        "packages": record.ingredients.packages,
        "preload": record.ingredients.preload,
        "resolved": record.resolved,
        "content": record.content,
        "size_bytes": record.size_bytes,
        "entries": record.entries,
        "created_at": record.created_at,
    })
}

fn json_of(listed: &Listed) -> serde_json::Value {
    let Mirror { id, root, record } = &listed.mirror;
    json!({
        "id": id,
        "root": root,
        "size_bytes": record.size_bytes,
        "entries": record.entries,
        "created_at": record.created_at,
        "build_seconds": record.build_seconds,
        "in_use": listed.in_use,
        "current": listed.current,
    })
}

fn verify(store: &Store, layers: &Layers, id: Option<&str>) -> Result<ExitCode, Error> {
    if let Some(layer) = id.and_then(|id| layers.find(id).ok()) {
        let _lock = layer.lock()?;
        let report = layer.verify(&mut |_| ())?;
        let mend = "remove it and create it again";
        return Ok(tell(&layer.id, &report, mend));
    }
    let mirror = match id {
        Some(id) => store.find(id)?,
        None => match store.find_base()? {
            Some(mirror) => mirror,
            None => {
                eprintln!("sandcell: there is no base yet; `sandcell mirror build` makes one");
                return Ok(ExitCode::FAILURE);
            }
        },
    };
    let _lock = mirror.lock_shared()?;
    let report = mirror.verify(&mut |_| ())?;
    let mend = "`sandcell mirror build --fresh` makes it whole";
    Ok(tell(&mirror.id, &report, mend))
}

fn tell(id: &str, report: &Report, mend: &str) -> ExitCode {
    for difference in &report.differences {
        println!("{difference}");
    }
    if report.is_clean() {
        println!(
            "{id} is as it was built: {} in {} entries",
            size(report.size_bytes),
            report.entries
        );
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "sandcell: {id} differs from what was built, {} times; {mend}",
        report.differences.len()
    );
    ExitCode::FAILURE
}

fn remove(
    store: &Store,
    layers: &Layers,
    ids: &[String],
    outdated: bool,
) -> Result<ExitCode, Error> {
    let mut removed = Vec::new();
    let listed = layers.list()?;
    let needed = |id: &str| listed.iter().find(|l| l.record.ingredients.base == id);
    if outdated {
        for Listed {
            mirror,
            in_use,
            current,
        } in store.list()?
        {
            if current || in_use {
                continue;
            }
            match needed(&mirror.id) {
                None => removed.push(store.remove(&mirror.id)?),
                Some(layer) => println!("{} is kept: {} needs it", mirror.id, layer.record.name),
            }
        }
    }
    for id in ids {
        if let Ok(layer) = layers.find(id) {
            layers.remove(&layer)?;
            println!("{} removed: {}", layer.id, size(layer.record.size_bytes));
            continue;
        }
        let mirror = store.find(id)?;
        if let Some(layer) = needed(&mirror.id) {
            return Err(Error::Needed {
                id: mirror.id,
                by: layer.record.name.clone(),
            });
        }
        removed.push(store.remove(&mirror.id)?);
    }
    for mirror in &removed {
        println!("{} removed: {}", mirror.id, size(mirror.record.size_bytes));
    }
    if removed.is_empty() && ids.is_empty() {
        println!("nothing to remove");
    }
    Ok(ExitCode::SUCCESS)
}

fn size(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

/// The UTC date of a time in seconds since 1970, as `YYYY-MM-DD`.
fn day(seconds: u64) -> String {
    let time = rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
    time.chars().take("YYYY-MM-DD".len()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_the_calendars() {
        assert_eq!(day(0), "1970-01-01");
        assert_eq!(day(951_782_400), "2000-02-29");
        assert_eq!(day(1_798_761_599), "2026-12-31");
        assert_eq!(day(1_798_761_600), "2027-01-01");
    }
}
