//! What all classes of things that are held have: `close`, and the `with` block that ends in it.

/// Gives a class `close`, with the documentation and the code given, and `with` blocks.
macro_rules! closes {
    ($(#[$doc:meta])+ $class:ident, |$this:ident, $py:ident| $close:expr) => {
        #[pyo3::pymethods]
        impl $class {
            $(#[$doc])+
            fn close(&self, $py: pyo3::Python<'_>) -> pyo3::PyResult<()> {
                let $this = self;
                Ok($close)
            }

            fn __enter__(slf: pyo3::Bound<'_, Self>) -> pyo3::Bound<'_, Self> {
                slf
            }

            #[pyo3(signature = (*why))]
            fn __exit__(
                &self,
                py: pyo3::Python<'_>,
                why: &pyo3::Bound<'_, pyo3::types::PyTuple>,
            ) -> pyo3::PyResult<()> {
                $crate::error::unless_failed(why, self.close(py))
            }
        }
    };
}

pub(crate) use closes;
