//! The modules of a crate: their files, what they define, what they import, and every path that they
//! name. Read from a crate's root along its `mod` declarations.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use proc_macro2::Delimiter;

use super::syntax::{self, Token};

/// Names of a module and of the modules around it, from the crate's root on; empty for the root
/// itself.
pub(super) type ModulePath = Vec<String>;

/// A module: a file of its own, or a block inside of another module's file.
#[derive(Clone, Debug, Default)]
pub(super) struct Module {
    /// Position in [`Modules::files`].
    pub(super) file: usize,
    definitions: BTreeSet<String>,
    /// Names that `use` brings in, with the paths they stand for.
    imports: BTreeMap<String, Vec<String>>,
    /// Paths of the modules from which `use …::*` imports all names.
    globs: Vec<Vec<String>>,
}

/// A path in some module's text.
#[derive(Clone, Debug)]
pub(super) struct Mention {
    pub(super) module: ModulePath,
    pub(super) path: Vec<String>,
    pub(super) line: usize,
}

/// A source file.
#[derive(Clone, Debug)]
pub(super) struct SourceFile {
    pub(super) path: PathBuf,
    pub(super) module: ModulePath,
    pub(super) tokens: Vec<Token>,
}

/// All modules below one root, without those for tests.
#[derive(Debug, Default)]
pub(super) struct Modules {
    pub(super) files: Vec<SourceFile>,
    modules: BTreeMap<ModulePath, Module>,
    pub(super) mentions: Vec<Mention>,
}

/// How many imports of imports are followed before a name counts as one of another crate.
const IMPORTS_MAX: usize = 32;

const DEFINING: &[&str] = &["fn", "struct", "enum", "union", "trait", "type", "const", "static"];

impl Modules {
    pub(super) fn read(root: &Path) -> anyhow::Result<Self> {
        let mut modules = Self::default();
        modules.read_file(root, &[])?;
        Ok(modules)
    }

    /// A file's path from its root's folder.
    pub(super) fn name_of(&self, file: usize) -> String {
        let path = &self.files[file].path;
        let root = self.files[0].path.parent().unwrap_or(Path::new(""));
        path.strip_prefix(root).unwrap_or(path).display().to_string()
    }

    fn read_file(&mut self, path: &Path, module: &[String]) -> anyhow::Result<()> {
        let tokens = syntax::read(path)?;
        let file = self.files.len();
        self.files.push(SourceFile {
            path: path.to_owned(),
            module: module.to_vec(),
            tokens: tokens.clone(),
        });
        self.read_module(&tokens, module, file)
    }

    fn read_module(
        &mut self,
        tokens: &[Token],
        path: &[String],
        file: usize,
    ) -> anyhow::Result<()> {
        self.modules.insert(path.to_vec(), Module { file, ..Module::default() });
        for (idx, token) in tokens.iter().enumerate() {
            let Some(word) = token.word() else { continue };
            match (word, tokens.get(idx + 1), tokens.get(idx + 2)) {
                ("mod", Some(Token::Word { text, .. }), Some(next)) => {
                    let child = [path, std::slice::from_ref(text)].concat();
                    if let Some(inner) = next.group(Delimiter::Brace) {
                        self.read_module(inner, &child, file)?;
                    } else {
                        let at = self.file_of(file, path, text)?;
                        self.read_file(&at, &child)?;
                    }
                }
                ("use", ..) => self.import(path, &tokens[idx + 1..]),
                ("macro_rules", Some(mark), Some(Token::Word { text, .. }))
                    if mark.is_mark('!') =>
                {
                    self.at(path).definitions.insert(text.clone());
                }
                // `&'static Name` defines nothing.
                _ if idx.checked_sub(1).is_some_and(|idx| tokens[idx].is_mark('\'')) => {}
                (word, Some(Token::Word { text, .. }), _) if DEFINING.contains(&word) => {
                    self.at(path).definitions.insert(text.clone());
                }
                _ => {}
            }
        }
        self.find_mentions(tokens, path);
        Ok(())
    }

    fn at(&mut self, path: &[String]) -> &mut Module {
        self.modules.get_mut(path).expect("a module is entered before it is read")
    }

    /// The file of `mod name;` in a module of `file`.
    fn file_of(&self, file: usize, parent: &[String], name: &str) -> anyhow::Result<PathBuf> {
        let SourceFile { path, module, .. } = &self.files[file];
        let dir = path.parent().context("a file is in a folder")?;
        let owns_dir = matches!(path.file_name(), Some(it) if it == "lib.rs" || it == "main.rs" || it == "mod.rs");
        let mut dir = if owns_dir { dir.to_owned() } else { path.with_extension("") };
        dir.extend(&parent[module.len()..]);
        let files = [dir.join(format!("{name}.rs")), dir.join(name).join("mod.rs")];
        match files.iter().find(|it| it.is_file()) {
            Some(path) => Ok(path.clone()),
            None => bail!("{}: module `{name}` has no file", path.display()),
        }
    }

    fn import(&mut self, module: &[String], tokens: &[Token]) {
        let end = tokens.iter().position(|it| it.is_mark(';')).unwrap_or(tokens.len());
        for import in imports(&tokens[..end], &[]) {
            match import.name.as_deref() {
                Some("_") => {}
                Some(name) => {
                    self.at(module).imports.insert(name.to_owned(), import.path);
                }
                None => self.at(module).globs.push(import.path),
            }
        }
    }

    /// Collects every path of these tokens that begins in this crate. Modules inside read their own.
    fn find_mentions(&mut self, tokens: &[Token], module: &[String]) {
        let mut idx = 0;
        while let Some(token) = tokens.get(idx) {
            let rest = &tokens[idx + 1..];
            match token {
                Token::Word { text, .. } if text == "mod" => {
                    // Skips the name and the body of the module, which is searched by itself.
                    idx += 2;
                }
                Token::Word { text, .. } if text == "pub" => {
                    // A visibility, as in `pub(in crate::a)`, uses nothing.
                    idx +=
                        usize::from(rest.first().is_some_and(|it| matches!(it, Token::Group(..))));
                }
                Token::Word { text, line } if text == "use" => {
                    let end = rest.iter().position(|it| it.is_mark(';')).unwrap_or(rest.len());
                    for import in imports(&rest[..end], &[]) {
                        self.mention(module, import.path, *line);
                    }
                    idx += end;
                }
                Token::Word { text, line }
                    if ["crate", "super", "self"].contains(&text.as_str()) =>
                {
                    let path = path_at(&tokens[idx..]);
                    idx += 3 * (path.len() - 1);
                    if 1 < path.len() {
                        self.mention(module, path, *line);
                    }
                }
                Token::Group(_, inner) => self.find_mentions(inner, module),
                _ => {}
            }
            idx += 1;
        }
    }

    fn mention(&mut self, module: &[String], path: Vec<String>, line: usize) {
        self.mentions.push(Mention { module: module.to_vec(), path, line });
    }

    /// Returns the index of the file that defines what a path names; none if another crate does.
    pub(super) fn resolve(&self, module: &[String], path: &[String]) -> Option<usize> {
        self.follow(module, path, IMPORTS_MAX)
    }

    fn follow(&self, module: &[String], path: &[String], imports_left: usize) -> Option<usize> {
        let imports_left = imports_left.checked_sub(1)?;
        let mut here = module.to_vec();
        for (idx, segment) in path.iter().enumerate() {
            match segment.as_str() {
                "crate" => here.clear(),
                "self" => {}
                "super" => {
                    here.pop();
                }
                name => {
                    let child = [here.as_slice(), &[name.to_owned()]].concat();
                    if self.modules.contains_key(&child) {
                        here = child;
                        continue;
                    }
                    let is_first = idx == 0;
                    return self.follow_name(&here, &path[idx..], is_first, imports_left);
                }
            }
        }
        self.modules.get(&here).map(|module| module.file)
    }

    /// Returns the index of the file for a name that is no module of `here`: the name may be
    /// defined there, or imported by name or by a glob.
    fn follow_name(
        &self,
        here: &[String],
        path: &[String],
        is_first: bool,
        imports_left: usize,
    ) -> Option<usize> {
        let module = self.modules.get(here)?;
        let (name, rest) = path.split_first()?;
        if module.definitions.contains(name) {
            return Some(module.file);
        }
        if let Some(import) = module.imports.get(name).filter(|import| import.first() != Some(name))
        {
            return self.follow(here, &[import.as_slice(), rest].concat(), imports_left);
        }
        let globs = module.globs.iter();
        let of_glob = |glob: &Vec<String>| {
            let path = [glob.as_slice(), path].concat();
            self.follow(here, &path, imports_left)
        };
        let found = globs.filter(|it| it.first().is_some_and(|it| it != "super")).find_map(of_glob);
        // Tokens do not show the definitions that a macro makes, so any other name counts as
        // defined here; but the first name of a path may be that of another crate.
        found.or((!is_first).then_some(module.file))
    }
}

/// One import of a `use`; its `name` is `None` for a glob.
#[derive(Debug, Eq, PartialEq)]
struct Import {
    path: Vec<String>,
    name: Option<String>,
}

/// The names of a use tree below a path.
fn imports(tokens: &[Token], below: &[String]) -> Vec<Import> {
    let mut found = Vec::new();
    for tree in tokens.split(|it| it.is_mark(',')).filter(|tree| !tree.is_empty()) {
        let path = path_at(tree);
        let after = &tree[(3 * path.len()).saturating_sub(2).min(tree.len())..];
        let mut full = [below, path.as_slice()].concat();
        let after = match after {
            [colon, second, rest @ ..] if colon.is_mark(':') && second.is_mark(':') => rest,
            rest => rest,
        };
        match after {
            [Token::Group(_, inner), ..] => found.extend(imports(inner, &full)),
            [mark, ..] if mark.is_mark('*') => found.push(Import { path: full, name: None }),
            [word, name, ..] if word.is_word("as") => {
                let name = name.word().unwrap_or("_").to_owned();
                found.push(Import { path: full, name: Some(name) });
            }
            _ => {
                // `a::{self}` is `a`.
                if 1 < full.len() && full.last().is_some_and(|it| it == "self") {
                    full.pop();
                }
                let name = full.last().cloned();
                found.extend(name.map(|name| Import { path: full, name: Some(name) }));
            }
        }
    }
    found
}

/// The words joined by `::` with which tokens begin.
fn path_at(tokens: &[Token]) -> Vec<String> {
    let mut path: Vec<String> = Vec::new();
    let mut rest = tokens;
    while let [Token::Word { text, .. }, after @ ..] = rest {
        path.push(text.clone());
        match after {
            [first, second, after @ ..] if first.is_mark(':') && second.is_mark(':') => {
                rest = after
            }
            _ => break,
        }
    }
    path
}
