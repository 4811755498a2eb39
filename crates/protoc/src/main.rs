//! A protobuf compiler with as much of protoc's command line as build scripts of dependencies use, so that nobody needs to
//! install protoc. `scripts/protoc` builds it and is what build scripts find in `PROTOC`; our own schemas are compiled by
//! the build script of `polis-proto`, which calls protox itself.

#![forbid(unsafe_code)]

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

/// What one call asks for: the schemas, with all that they import, as one encoded descriptor set.
#[derive(Debug, Default, PartialEq, Eq)]
struct Request {
    /// `-I`: directories in which imports are looked for.
    includes: Vec<PathBuf>,
    /// `-o`: the file that receives the descriptor set.
    output: PathBuf,
    /// `--include_source_info`: keep comments and positions.
    source_info: bool,
    schemas: Vec<PathBuf>,
}

impl Request {
    /// Reads the arguments after the program's name. Those that are not known are refused: leaving one out silently would
    /// give another result than protoc's.
    fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut request = Self::default();
        let mut imports = false;
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let mut value = |attached: &str| match attached {
                "" => arguments.next().ok_or_else(|| format!("{argument} needs a value")),
                attached => Ok(attached.to_owned()),
            };
            if let Some(attached) = argument.strip_prefix("-I") {
                request.includes.push(value(attached)?.into());
            } else if let Some(attached) = argument.strip_prefix("-o") {
                request.output = value(attached)?.into();
            } else if argument == "--include_imports" {
                imports = true;
            } else if argument == "--include_source_info" {
                request.source_info = true;
            } else if argument.starts_with('-') {
                return Err(format!("{argument} is not an option of this compiler"));
            } else {
                request.schemas.push(argument.into());
            }
        }
        if request.output.as_os_str().is_empty() || request.schemas.is_empty() || !imports {
            return Err(
                "usage: -o FILE --include_imports [--include_source_info] [-I DIRECTORY]... SCHEMA...".to_owned()
            );
        }
        Ok(request)
    }

    #[expect(clippy::disallowed_methods, reason = "an output of the build, which the next build makes again")]
    fn serve(&self) -> Result<(), Box<dyn Error>> {
        let mut compiler = protox::Compiler::new(&self.includes)?;
        compiler.include_imports(true).include_source_info(self.source_info).open_files(&self.schemas)?;
        Ok(std::fs::write(&self.output, compiler.encode_file_descriptor_set())?)
    }
}

fn main() -> ExitCode {
    let result = Request::parse(std::env::args().skip(1)).map_err(Into::into).and_then(|request| request.serve());
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("polis-protoc: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Request, String> {
        Request::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn the_call_of_a_build_script_is_understood() {
        let expected = Request {
            includes: vec!["a".into(), "b".into()],
            output: "out".into(),
            source_info: true,
            schemas: vec!["a/x.proto".into(), "b/y.proto".into()],
        };
        for line in [
            "--include_imports --include_source_info -o out -I a -I b a/x.proto b/y.proto",
            "-Ia -Ib --include_source_info --include_imports -oout a/x.proto b/y.proto",
        ] {
            assert_eq!(parse(line).as_ref(), Ok(&expected), "{line}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for line in [
            "",
            "--include_imports -o out",
            "--include_imports x.proto",
            "-o out x.proto",
            "--include_imports x.proto -o",
            "--include_imports -o out --experimental_allow_proto3_optional x.proto",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
