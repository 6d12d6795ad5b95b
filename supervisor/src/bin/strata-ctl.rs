//! The operator's tool; everything is in [`strata_supervisor::ctl`].

use std::process::ExitCode;

fn main() -> ExitCode {
    strata_supervisor::ctl::run()
}
