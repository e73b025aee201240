//! Lists what this kernel and this machine offer.

fn main() {
    println!("{}\n", portolan_sys::machine::describe());
    for feature in portolan_sys::probe::probe() {
        let mark = if feature.present { "yes" } else { "no" };
        println!("{mark:4} {:36} {}", feature.name, feature.detail);
        if !feature.present {
            println!("{:41} without: {}", "", feature.without);
        }
    }
}
