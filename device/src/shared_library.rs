//! Looks up shared libraries of the system when the process runs, so that programs start on machines that lack them.

/// A shared library, by its file name, with the functions that the program needs from it.
#[derive(Clone, Copy, Debug)]
pub struct SharedLibrary {
    /// The file name, such as `libibverbs.so.1`.
    pub file: &'static str,
    pub functions: &'static [&'static str],
}

impl SharedLibrary {
    /// Checks that the library and its functions exist. A library that was found stays loaded.
    ///
    /// # Errors
    /// The loader's message, or the names of the missing functions.
    pub fn check(&self) -> Result<(), String> {
        // SAFETY: callers name only libraries of the system, whose initialization is sound in any process.
        let library = unsafe { libloading::Library::new(self.file) }.map_err(|error| describe(&error))?;
        // SAFETY: the symbol is only looked up, not called.
        let is_missing = |name: &&&str| unsafe { library.get::<*const ()>(name.as_bytes()) }.is_err();
        let missing: Vec<&str> = self.functions.iter().filter(is_missing).copied().collect();
        // The library is never unloaded, because its exit code would run while other code may still use it.
        std::mem::forget(library);
        match missing.as_slice() {
            [] => Ok(()),
            missing => Err(format!("{} has no {}", self.file, missing.join(", "))),
        }
    }
}

/// Returns the loader's message, without the name of the failed call.
fn describe(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_or_function_is_named() {
        let missing = SharedLibrary { file: "libnone-of-this-name.so.1", functions: &[] };
        assert!(missing.check().is_err_and(|why| why.contains("libnone-of-this-name.so.1")));
        let c = SharedLibrary { file: "libc.so.6", functions: &["malloc", "no_such_function"] };
        assert_eq!(c.check(), Err("libc.so.6 has no no_such_function".to_owned()));
        assert_eq!(SharedLibrary { functions: &["malloc"], ..c }.check(), Ok(()));
    }
}
