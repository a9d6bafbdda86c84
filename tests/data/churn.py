import json, os, random, shutil


def seen():
    """What is there, looked at file by file."""
    found = {}
    for folder, folders, files in os.walk("."):
        folders[:] = [name for name in folders if name[0] != "." and name != "__pycache__"]
        # Links to folders are among these.
        for name in files + folders:
            path = os.path.join(folder, name)
            stat = os.lstat(path)
            if name[0] != "." and (os.path.islink(path) or os.path.isfile(path)):
                found[path[2:]] = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
    return found


def churn(seed, times):
    """Does one thing after another to files and folders, and says what has come of it."""
    chance = random.Random(seed)
    before = seen()
    for _ in range(times):
        files = [path for path in seen()] or ["none"]
        folders = [folder for folder, _, _ in os.walk(".") if folder != "." and "/." not in folder]
        file, other = chance.choice(files), chance.choice(files)
        folder, elsewhere = chance.choice(folders), chance.choice(folders)
        new = os.path.join(folder, f"n{chance.randrange(50)}")
        away = f"/tmp/away{chance.randrange(3)}"
        try:
            match chance.randrange(16):
                case 0 | 1: open(new, "a").write("x" * chance.randrange(9))
                case 2: open(file, "w").write("y")
                case 3: os.truncate(file, chance.randrange(99))
                case 4: os.remove(file)
                case 5: os.rename(file, new)
                case 6: os.replace(file, other)
                case 7: os.makedirs(os.path.join(new, "deep"))
                case 8: os.rename(folder, new)
                case 9: os.link(file, new)
                case 10: os.symlink(file, new)
                case 11: os.chmod(file, 0o600)
                case 12: shutil.move(folder if chance.random() < 0.3 else file, away)
                case 13: shutil.move(away, new)
                case 14: shutil.copytree(folder, new) if len(files) < 3000 else shutil.rmtree(folder)
                case 15: os.rename(file, os.path.join(folder, ".hidden"))
        except OSError:
            pass
        except shutil.Error:
            pass
    after = seen()
    told = {path: "created" for path in after.keys() - before.keys()}
    told |= {path: "deleted" for path in before.keys() - after.keys()}
    told |= {path: "changed" for path in after.keys() & before.keys() if after[path] != before[path]}
    print(json.dumps([[path, told[path], after.get(path, [0])[0]] for path in sorted(told)]))
