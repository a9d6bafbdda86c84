//! The flows of the first seed's README.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::sandbox::shown;
use crate::picture::Picture;

#[test]
fn basic_use() {
    let service = Service::start();
    let sandbox = service.create();
    assert_eq!(sandbox.id.len(), 26);
    assert!(
        sandbox
            .id
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    );
    assert!(sandbox.created["expires_at"].as_str() > sandbox.created["created_at"].as_str());

    let outcome = sandbox.execute("print('Hello, Sandbox! 👋')");
    assert_eq!(outcome["stdout"], "Hello, Sandbox! 👋\n");
    assert_eq!(outcome["stderr"], "");
    for absent in ["error", "error_value", "traceback"] {
        assert_eq!(outcome[absent], Value::Null, "{absent}");
    }
    assert_eq!(outcome["results"], json!([]));
    assert_eq!(outcome["execution_count"], 1);

    assert_eq!(sandbox.files(), []);
    sandbox.execute("open('generated.csv', 'w').write('a,b\\n1,2\\n')");
    assert_eq!(sandbox.files(), [("generated.csv".to_owned(), 8)]);
    assert_eq!(sandbox.download("generated.csv").ok().body, b"a,b\n1,2\n");

    let uploaded = sandbox.upload("test_upload.txt", b"uploaded").ok().json();
    assert_eq!(uploaded, json!({ "file_path": "test_upload.txt" }));
    assert_eq!(
        sandbox.stdout("print(open('test_upload.txt').read())"),
        "uploaded\n"
    );

    let listed = service.get("/sandboxes").ok().json();
    assert_eq!(listed[&sandbox.id]["name"], sandbox.created["name"]);
    assert_eq!(listed[&sandbox.id]["state"], "idle");
    let closed = sandbox.close().ok().json();
    assert_eq!(
        closed,
        json!({ "status": "success", "message": "Sandbox closed" })
    );
    assert_eq!(service.get("/sandboxes").ok().json(), json!({}));
}

#[test]
fn three_executions_share_a_data_frame_whose_csv_is_downloaded() {
    let service = Service::preloaded();
    let sandbox = service.create();
    let shown_frame = sandbox.stdout(
        "import numpy as np\n\
         import pandas as pd\n\n\
         data = {\n    'Name': ['Alice', 'Bob', 'Charlie', 'David'],\n    'Age': [28, 32, 45, 36],\n    \
         'Salary': [8000, 12000, 15000, 9000]\n}\n\
         df = pd.DataFrame(data)\n\
         print(df)",
    );
    assert!(
        shown_frame.contains("Charlie   45   15000"),
        "{shown_frame}"
    );
    let averages = sandbox.stdout(
        "avg_age = df['Age'].mean()\n\
         avg_salary = df['Salary'].mean()\n\
         print(f\"Average Age: {avg_age:.1f}\")\n\
         print(f\"Average Salary: ${avg_salary:.2f}\")\n\
         df['Age Group'] = pd.cut(df['Age'], bins=[20, 30, 40, 50], labels=['20-30s', '30-40s', '40-50s'])\n\
         print(df)",
    );
    assert!(
        averages.starts_with("Average Age: 35.2\nAverage Salary: $11000.00\n"),
        "{averages}"
    );
    let outcome = sandbox.execute(
        "df.to_csv('processed_data.csv', index=False)\n\
         print(\"Data saved to processed_data.csv 💾\")",
    );
    assert_eq!(
        outcome["stdout"],
        "Data saved to processed_data.csv 💾\n",
        "{}",
        shown(&outcome)
    );
    let csv = "Name,Age,Salary,Age Group\n\
               Alice,28,8000,20-30s\n\
               Bob,32,12000,30-40s\n\
               Charlie,45,15000,40-50s\n\
               David,36,9000,30-40s\n";
    assert_eq!(
        outcome["files"],
        json!([{
            "path": "processed_data.csv", "size": csv.len(), "change": "created",
            "url": format!("/sandbox/{}/download/processed_data.csv", sandbox.id),
        }])
    );
    assert_eq!(
        sandbox.files(),
        [("processed_data.csv".to_owned(), csv.len() as u64)]
    );
    assert_eq!(
        sandbox.download("processed_data.csv").ok().body,
        csv.as_bytes()
    );
}

#[test]
fn a_figure_is_returned_unsaved_and_saved_by_the_next_execution() {
    let service = Service::preloaded();
    let sandbox = service.create();
    let outcome = sandbox.execute(
        "import numpy as np\n\
         import matplotlib.pyplot as plt\n\
         x = np.linspace(0, 10, 100)\n\
         y1 = np.sin(x)\n\
         y2 = np.cos(x)\n\
         plt.figure(figsize=(10, 6))\n\
         plt.plot(x, y1, label='Sine Function')\n\
         plt.plot(x, y2, label='Cosine Function')\n\
         plt.title('Trigonometric Functions Demo 📈')\n\
         plt.xlabel('X-axis')\n\
         plt.ylabel('Y-axis')\n\
         plt.grid(True)\n\
         plt.legend()\n\
         plt.tight_layout()\n",
    );
    assert_eq!(outcome["outcome"], "ok", "{}", shown(&outcome));
    assert_eq!(
        outcome["stderr"], "",
        "no warning, not even of a glyph of the title"
    );
    assert_eq!(outcome["files"], json!([]), "nothing was saved");
    let pictures: Vec<&Value> = outcome["results"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|r| r["type"] == "image/png")
        .collect();
    assert_eq!(pictures.len(), 1, "{}", shown(&outcome));
    let bytes = BASE64_STANDARD
        .decode(pictures[0]["data"].as_str().expect("text"))
        .expect("base64");
    Picture::decode(&bytes).assert_shows_two_lines();

    let outcome = sandbox.execute(
        "plt.savefig('trigonometric_functions.png', dpi=300, bbox_inches='tight')\n\
         print(\"Plot saved as trigonometric_functions.png 🎨\")",
    );
    assert_eq!(
        outcome["stdout"],
        "Plot saved as trigonometric_functions.png 🎨\n",
        "{}",
        shown(&outcome)
    );
    assert_eq!(outcome["results"], json!([]), "saving shows nothing again");
    let saved = sandbox.download("trigonometric_functions.png").ok();
    assert_eq!(saved.header("content-type"), Some("image/png"));
    let picture = Picture::decode(&saved.body);
    assert_eq!(picture.dpi, Some(300));
    // Ten by six inches, cut to what is drawn.
    assert!(
        (2700..=3000).contains(&picture.width),
        "{} wide",
        picture.width
    );
    assert!(
        (1600..=1800).contains(&picture.height),
        "{} high",
        picture.height
    );
    picture.assert_shows_two_lines();
}

#[test]
fn a_name_may_be_an_emoji() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "name": "📈 Demo — “plots” 🚀" }));
    assert_eq!(sandbox.created["name"], "📈 Demo — “plots” 🚀");
    let listed = service.get("/sandboxes").ok().json();
    assert_eq!(listed[&sandbox.id]["name"], "📈 Demo — “plots” 🚀");
}
